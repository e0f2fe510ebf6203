//! States of a document and the reasons it can fail for.

use serde::{Deserialize, Serialize};

/// Where a document is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentStatus {
    /// Waiting for a worker.
    Pending,
    /// Waiting out a back-off or a budget window.
    Delayed,
    /// Claimed by a worker under a lease.
    Processing,
    /// Its complete content is searchable.
    Ready,
    /// It ended with a code; a reprocess tries again.
    Failed,
}

impl DocumentStatus {
    /// The name in the database and on the APIs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delayed => "delayed",
            Self::Processing => "processing",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)+) => {
        /// Why a document failed: a stable code for programs and a sentence for people.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum DocumentFailure {
            $($(#[$doc])* #[serde(rename = $code)] $name,)+
        }

        impl DocumentFailure {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable code.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            /// The sentence, which never contains document text or file names.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)+ }
            }
        }
    };
}

failures! {
    /// The bytes are not of a supported type.
    UnsupportedType = "unsupported_type", "this file type is not supported";
    /// The bytes do not match the declared type or extension.
    TypeMismatch = "type_mismatch", "the content does not match the file's extension or declared type";
    /// There are no bytes.
    EmptyFile = "empty_file", "the file is empty";
    /// The text is not text.
    BinaryContent = "binary_content", "the content is binary, not text";
    /// Parsed, but without any text.
    NoText = "no_text", "the document contains no text";
    /// A PDF without text, most likely scanned.
    PdfNoText = "pdf_no_text", "the PDF has no extractable text; it looks scanned";
    /// A PDF that needs a password.
    PdfEncrypted = "pdf_encrypted", "the PDF is encrypted and needs a password";
    /// A PDF that cannot be read.
    PdfCorrupt = "pdf_corrupt", "the PDF is damaged and could not be read";
    /// A PDF whose fonts or drawing the engines cannot read.
    PdfUnreadable = "pdf_unreadable", "no text could be read from the PDF: it uses fonts or features that are not supported";
    /// Another format that cannot be read.
    Corrupt = "corrupt", "the file is damaged and could not be read";
    /// An office file that needs a password.
    Encrypted = "encrypted", "the file is encrypted and needs a password";
    /// More pages than allowed.
    TooManyPages = "too_many_pages", "the document has more pages than the limit of 2000";
    /// More text than allowed.
    TextTooLarge = "text_too_large", "the extracted text is over the limit of 20 MiB";
    /// More text on a page than allowed.
    PageTextTooLarge = "page_text_too_large", "a page has more text than the limit of 2 MiB";
    /// More chunks than allowed.
    TooManyChunks = "too_many_chunks", "the document makes more chunks than MAX_CHUNKS_PER_DOCUMENT allows";
    /// An archive that inflates without bound.
    ArchiveBomb = "archive_bomb", "the file inflates beyond the limits for archives";
    /// The parser reached its memory or CPU limit.
    ParserLimit = "parser_limit", "the parser reached its memory or CPU limit on this file";
    /// The parser was ended by a signal.
    ParserCrashed = "parser_crashed", "the parser crashed on this file";
    /// The parser did not end in time.
    ParserTimeout = "parser_timeout", "the parser did not finish within 120 seconds";
    /// The job did not end in time.
    JobDeadline = "job_deadline", "the document was not finished within 15 minutes of its claim";
    /// The claims ran out.
    GaveUpAfterAttempts = "gave_up_after_attempts", "gave up after INGEST_MAX_ATTEMPTS claims that ended without a verdict";
    /// The embedding provider refused.
    EmbeddingRejected = "embedding_rejected", "the embedding provider refused the request";
    /// The embedding provider is away.
    EmbeddingUnavailable = "embedding_unavailable", "the embedding provider could not be reached or answered with an error";
    /// The embedding provider answered with another width.
    EmbeddingWidthMismatch = "embedding_width_mismatch", "the embedding provider answered with vectors of another width than the store's";
    /// The provider's credential cannot be opened.
    CredentialUnreadable = "credential_unreadable", "the embedding connection's credential cannot be opened with this SECRET_KEY";
    /// The project's budget has no room.
    Budget = "budget", "the project's budget has no room; the document waits for the next window";
    /// A fault of ours.
    Internal = "internal", "an internal error; the worker's log has the details";
}
