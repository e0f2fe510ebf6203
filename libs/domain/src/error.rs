//! What kind of failure a caller is looking at, independent of the protocol that reports it.

/// The closed set of outcomes that the faces (HTTP, gRPC) translate, each in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The thing named does not exist, or the caller may not know that it does.
    NotFound,
    /// Something of that name is there already.
    AlreadyExists,
    /// The request itself is wrong; sending it again will not help.
    Invalid,
    /// Who is calling is not known.
    Unauthenticated,
    /// Who is calling is known and may not do this.
    Forbidden,
    /// The state of the thing does not allow it now.
    Conflict,
    /// A limit or budget is spent.
    Limited,
    /// A part that is needed is away; trying later helps.
    Unavailable,
    /// A part did not answer in time.
    Timeout,
    /// A fault of ours; the details are in the log under the request's id.
    Internal,
}
