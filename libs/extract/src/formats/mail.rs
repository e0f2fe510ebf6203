//! Electronic mail: the fields a reader sees, then the text of its parts.

use domain::DocumentFailure;
use mailparse::{DispositionType, MailHeaderMap, ParsedMail};

use super::{html, plain};
use crate::{
    BlockKind, ExtractError, Summary,
    emit::{Emitter, Outline, clean},
};

/// Mails in mails in mails.
const MAX_DEPTH: usize = 16;
/// Parts of one mail, all of them together.
const MAX_PARTS: usize = 2000;

pub(super) fn extract(bytes: &[u8], emitter: &mut Emitter<'_>) -> Result<Summary, ExtractError> {
    let bytes = without_mailbox_line(bytes);
    let mail = mailparse::parse_mail(bytes).map_err(|_| DocumentFailure::Corrupt)?;
    if mail.headers.is_empty() {
        return Err(DocumentFailure::TypeMismatch.into());
    }
    let mut outline = Outline::new(emitter);
    let mut reader = Reader { charset: None, parts: 0 };
    reader.mail(&mail, 1, &mut outline)?;
    outline.finish()?;
    Ok(Summary {
        title: field(&mail, "Subject"),
        charset: reader.charset,
        engine: "mail".to_owned(),
        ..Summary::default()
    })
}

/// Mailbox files put a line before each mail that is no field (RFC 4155).
fn without_mailbox_line(bytes: &[u8]) -> &[u8] {
    if !bytes.starts_with(b"From ") {
        return bytes;
    }
    let end = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
    bytes.get(end..).unwrap_or_default()
}

fn field(mail: &ParsedMail<'_>, name: &str) -> Option<String> {
    let value = clean(&mail.headers.get_first_value(name)?).split_whitespace().collect::<Vec<_>>().join(" ");
    (!value.is_empty()).then_some(value)
}

struct Reader {
    /// Of the first part with text.
    charset: Option<String>,
    parts: usize,
}

impl Reader {
    fn mail(&mut self, mail: &ParsedMail<'_>, depth: usize, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        if depth > MAX_DEPTH {
            return Err(DocumentFailure::ParserLimit.into());
        }
        if let Some(subject) = field(mail, "Subject") {
            outline.heading(u8::try_from(depth).unwrap_or(u8::MAX), &subject)?;
        }
        let fields = ["From", "To", "Cc", "Date"];
        let lines: Vec<String> =
            fields.iter().filter_map(|name| Some(format!("{name}: {}", field(mail, name)?))).collect();
        outline.block(BlockKind::Paragraph, &lines.join("\n"))?;
        self.part(mail, depth, outline)
    }

    fn part(&mut self, part: &ParsedMail<'_>, depth: usize, outline: &mut Outline<'_, '_>) -> Result<(), ExtractError> {
        self.parts += 1;
        if self.parts > MAX_PARTS || depth > MAX_DEPTH {
            return Err(DocumentFailure::ParserLimit.into());
        }
        let kind = part.ctype.mimetype.as_str();
        let disposition = part.get_content_disposition();
        let name = disposition.params.get("filename").or_else(|| part.ctype.params.get("name"));
        if kind == "multipart/alternative" {
            return match alternative(part) {
                Some(best) => self.part(best, depth + 1, outline),
                None => Ok(()),
            };
        }
        if !part.subparts.is_empty() {
            for inner in &part.subparts {
                self.part(inner, depth + 1, outline)?;
            }
            return Ok(());
        }
        if kind == "message/rfc822" {
            let raw = part.get_body_raw().map_err(|_| DocumentFailure::Corrupt)?;
            return match mailparse::parse_mail(&raw) {
                Ok(inner) => self.mail(&inner, depth + 1, outline),
                Err(_) => Ok(()),
            };
        }
        if disposition.disposition == DispositionType::Attachment || !kind.starts_with("text/") {
            // What is attached is named; its content is a document of its own.
            return match name {
                Some(name) => outline.block(BlockKind::Paragraph, &format!("Attachment: {name}")),
                None => Ok(()),
            };
        }
        let text = part.get_body().map_err(|_| DocumentFailure::Corrupt)?;
        self.charset.get_or_insert_with(|| part.ctype.charset.clone());
        if kind == "text/html" { html::content(&text, outline).map(drop) } else { plain::paragraphs_of(&text, outline) }
    }
}

/// Plain text is what the others are made from; without any, the last is the richest (RFC 2046, 5.1.4).
fn alternative<'m, 'a>(part: &'m ParsedMail<'a>) -> Option<&'m ParsedMail<'a>> {
    let is_plain =
        |p: &&ParsedMail<'_>| p.ctype.mimetype == "text/plain" && p.get_body().is_ok_and(|b| !b.trim().is_empty());
    part.subparts.iter().find(is_plain).or_else(|| part.subparts.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &[u8]) -> (Summary, String) {
        let mut blocks = Vec::new();
        let summary = crate::extract(crate::Format::Mail, crate::Engine::First, source, &mut |page| {
            blocks.extend(page.sections.into_iter().flat_map(|s| s.blocks).map(|b| b.text));
            Ok(())
        })
        .unwrap();
        (summary, blocks.join("\n\n"))
    }

    #[test]
    fn fields_text_and_names_of_attachments_are_read() {
        let mail = "From a@example.org Mon Jan 1\r\nFrom: =?utf-8?Q?J=C3=BCrgen?= <a@example.org>\r\nTo: b@example.org\r\n\
            Subject: =?iso-8859-1?Q?Gr=FC=DFe?=\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n\
            --x\r\nContent-Type: multipart/alternative; boundary=y\r\n\r\n\
            --y\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
            caf=E9 um drei\r\n--y\r\nContent-Type: text/html\r\n\r\n<p>other</p>\r\n--y--\r\n\
            --x\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=plan.pdf\r\n\r\nJVBE\r\n\
            --x\r\nContent-Type: message/rfc822\r\n\r\nSubject: inner\r\nContent-Type: text/html\r\n\r\n<p>deep <b>down</b></p>\r\n\
            --x--\r\n";
        let (summary, text) = read(mail.as_bytes());
        assert_eq!(summary.title.as_deref(), Some("Grüße"));
        assert_eq!(summary.charset.as_deref(), Some("iso-8859-1"));
        assert_eq!(
            text,
            "Grüße\n\nFrom: Jürgen <a@example.org>\nTo: b@example.org\n\ncafé um drei\n\nAttachment: plan.pdf\n\n\
             inner\n\ndeep down"
        );
    }
}
