//! What is logged, and how.

use crate::{Choice, Env};

/// How a log event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text when standard output is a terminal, JSON otherwise.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// One line of text, for people.
    Text,
}

impl Choice for LogFormat {
    const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("json", Self::Json), ("text", Self::Text)];
}

/// The settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// `LOG_LEVEL`: a level, or levels by module as in `info,hyper=warn`.
    pub level: String,
    /// `LOG_FORMAT`.
    pub format: LogFormat,
}

impl Logging {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        let level = env.text("LOG_LEVEL", "info");
        let level = level.trim();
        if !is_level_list(level) {
            let levels = LEVELS.join(", ");
            env.reject(
                "LOG_LEVEL",
                Some(level),
                format!("expected one of {levels}, or a list such as info,hyper=warn"),
            );
        }
        Self { level: level.to_ascii_lowercase(), format: env.choice("LOG_FORMAT", LogFormat::Auto) }
    }
}

impl Default for Logging {
    /// Level info in the automatic format.
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Auto }
    }
}

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

fn is_level_list(text: &str) -> bool {
    text.split(',').all(|directive| {
        let (target, level) = directive.rsplit_once('=').unwrap_or(("all", directive));
        LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
            && !target.is_empty()
            && target.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_may_differ_by_module() {
        for level in ["info", "WARN", "info,hyper=warn", "warn,ragmux_edge::stack=debug", "off"] {
            let mut env = Env::of([("LOG_LEVEL", level)]);
            assert_eq!(Logging::read(&mut env).level, level.to_ascii_lowercase());
            env.finish().unwrap();
        }
        for level in ["verbose", "info,", "=info", "info,hyper=", "a b=info"] {
            let mut env = Env::of([("LOG_LEVEL", level)]);
            Logging::read(&mut env);
            assert!(env.finish().is_err(), "{level}");
        }
    }

    #[test]
    fn the_default_is_the_one_of_an_empty_environment() {
        assert_eq!(Logging::read(&mut Env::of::<&str, &str>([])), Logging::default());
    }
}
