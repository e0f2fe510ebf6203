//! Which model providers may be at addresses that are not public.

use crate::Env;

/// The section. Without it a connection leads to public addresses only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateUpstreams {
    /// `ALLOW_PRIVATE_UPSTREAMS`: any may.
    pub allow_all: bool,
    /// `PRIVATE_UPSTREAM_ALLOWLIST`: hosts that may, as they are written in base URLs.
    pub hosts: Vec<String>,
}

impl PrivateUpstreams {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        Self { allow_all: env.flag("ALLOW_PRIVATE_UPSTREAMS", false), hosts: env.list("PRIVATE_UPSTREAM_ALLOWLIST") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_private_is_allowed_unless_said() {
        let mut env = Env::of([("PRIVATE_UPSTREAM_ALLOWLIST", "ollama, vllm.internal")]);
        let section = PrivateUpstreams::read(&mut env);
        assert!(!section.allow_all);
        assert_eq!(section.hosts, ["ollama", "vllm.internal"]);
        env.finish().unwrap();
    }
}
