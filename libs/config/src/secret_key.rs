//! The key that seals credentials in the database.

use std::path::PathBuf;

use domain::Secret;

use crate::Env;

/// Where the sealing key comes from.
#[derive(Clone, Debug)]
pub struct SecretKey {
    /// `SECRET_KEY`: 64 hexadecimal digits. Without it the key is kept in `secret.key` in the data folder.
    pub current: Option<Secret>,
    /// `SECRET_KEY_PREVIOUS`: a second key that opens what was sealed before a rotation.
    pub previous: Option<Secret>,
    /// `DATA_DIR`: the folder of what a process keeps on its own disk.
    pub data_dir: PathBuf,
}

impl SecretKey {
    /// Reads the section.
    pub fn read(env: &mut Env) -> Self {
        let current = hex_key(env, "SECRET_KEY");
        let previous = hex_key(env, "SECRET_KEY_PREVIOUS");
        if previous.is_some() && current.is_none() && !env.has_mistake("SECRET_KEY") {
            env.reject("SECRET_KEY_PREVIOUS", None, "needs SECRET_KEY as well, the key that replaces it");
        }
        Self { current, previous, data_dir: env.text("DATA_DIR", "./data").into() }
    }
}

fn hex_key(env: &mut Env, key: &'static str) -> Option<Secret> {
    let secret = env.secret(key)?;
    let text = secret.expose().trim();
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Some(Secret::new(text));
    }
    let length = text.chars().count();
    env.reject(key, None, format!("expected 64 hexadecimal digits (32 bytes), found {length} characters"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        let padded = format!(" {KEY}\n");
        let mut env = Env::of([("SECRET_KEY", padded.as_str()), ("SECRET_KEY_PREVIOUS", KEY)]);
        let section = SecretKey::read(&mut env);
        assert_eq!(section.current.unwrap().expose(), KEY);
        assert_eq!(section.previous.unwrap().expose(), KEY);
        assert_eq!(section.data_dir, PathBuf::from("./data"));
        env.finish().unwrap();
    }

    #[test]
    fn a_wrong_key_is_not_shown() {
        let wrong = KEY.replace('0', "g");
        for text in [&KEY[1..], wrong.as_str(), "changeme"] {
            let mut env = Env::of([("SECRET_KEY", text)]);
            SecretKey::read(&mut env);
            let message = env.finish().unwrap_err().to_string();
            assert!(message.contains("SECRET_KEY: expected 64 hexadecimal digits"), "{message}");
            assert!(!message.contains(text), "{message}");
        }
    }

    #[test]
    fn a_previous_key_alone_is_a_mistake() {
        let mut env = Env::of([("SECRET_KEY_PREVIOUS", KEY)]);
        SecretKey::read(&mut env);
        assert!(env.finish().unwrap_err().to_string().contains("needs SECRET_KEY as well"));
    }
}
