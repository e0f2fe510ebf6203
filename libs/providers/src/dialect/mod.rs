//! One folder per provider dialect: request out, answer in, stream in, errors in.

pub(crate) mod openai;
