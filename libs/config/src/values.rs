//! The getters: from the text of a key to a typed value.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use domain::Secret;

use crate::env::Found;
use crate::{Env, Size, duration};

/// A closed set of values that are chosen by name.
pub trait Choice: Copy + 'static {
    /// Every value with the name it is chosen by, lower case.
    const NAMES: &'static [(&'static str, Self)];
}

/// Every getter notes a mistake instead of failing, and then returns its default (or an empty value); see
/// [`Env::finish`].
impl Env {
    /// A text, or its default.
    pub fn text(&mut self, key: &'static str, default: &str) -> String {
        self.optional_text(key).unwrap_or_else(|| default.to_owned())
    }

    /// A text that may be absent.
    pub fn optional_text(&mut self, key: &'static str) -> Option<String> {
        self.find(key).map(|found| found.text)
    }

    /// A text that must be there.
    pub fn required_text(&mut self, key: &'static str) -> String {
        self.optional_text(key).unwrap_or_else(|| {
            self.missing(key);
            String::new()
        })
    }

    /// A secret that may be absent. It is never shown in a mistake.
    pub fn secret(&mut self, key: &'static str) -> Option<Secret> {
        self.find(key).map(|found| Secret::new(found.text))
    }

    /// A secret that must be there.
    pub fn required_secret(&mut self, key: &'static str) -> Secret {
        self.secret(key).unwrap_or_else(|| {
            self.missing(key);
            Secret::new("")
        })
    }

    /// A duration such as `500ms`, `2s`, `15m`, `2h` or `1h30m`, within a range.
    pub fn duration(&mut self, key: &'static str, default: Duration, range: RangeInclusive<Duration>) -> Duration {
        let expected = || {
            let (from, to) = (duration::show(*range.start()), duration::show(*range.end()));
            format!("expected a duration from {from} to {to}, such as 500ms, 15s or 2h")
        };
        self.read(key, |text| duration::parse(text).filter(|value| range.contains(value)).ok_or_else(expected))
            .unwrap_or(default)
    }

    /// A number within a range. With an integer type only whole numbers are accepted.
    pub fn number<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + Display,
    {
        let expected = || format!("expected a number from {} to {}", range.start(), range.end());
        self.read(key, |text| text.parse().ok().filter(|value| range.contains(value)).ok_or_else(expected))
            .unwrap_or(default)
    }

    /// A size given as a whole number of mebibytes, for keys that end in `_MB`; default and range in mebibytes too.
    pub fn mebibytes(&mut self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> Size {
        Size::mebibytes(self.number(key, default, range))
    }

    /// A switch: `true`, `false`, `1` or `0`.
    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.read(key, |text| match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err("expected true or false".to_owned()),
        })
        .unwrap_or(default)
    }

    /// One of a closed set, by name.
    pub fn choice<T: Choice>(&mut self, key: &'static str, default: T) -> T {
        self.optional_choice(key).unwrap_or(default)
    }

    /// One of a closed set, by name, or nothing.
    pub fn optional_choice<T: Choice>(&mut self, key: &'static str) -> Option<T> {
        self.read(key, |text| {
            let chosen = T::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            chosen.map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
                format!("expected one of {}", names.join(", "))
            })
        })
    }

    /// The address of a listener: `address:port`, or `:port` for every IPv4 address of the host.
    pub fn listen(&mut self, key: &'static str, default: impl Into<SocketAddr>) -> SocketAddr {
        self.read(key, listen_address).unwrap_or_else(|| default.into())
    }

    /// The address of a listener that need not be there. Setting the key to nothing switches it off.
    pub fn optional_listen(&mut self, key: &'static str, default: Option<SocketAddr>) -> Option<SocketAddr> {
        match self.read(key, listen_address) {
            Some(address) => Some(address),
            None if self.is_set_to_nothing(key) => None,
            None => default,
        }
    }

    /// A value of any type that can be read from text, or nothing. `what` says in the mistake what is expected, such
    /// as "a URL".
    pub fn parsed<T: FromStr>(&mut self, key: &'static str, what: &str) -> Option<T> {
        self.read(key, |text| text.parse().map_err(|_| format!("expected {what}")))
    }

    /// A list of texts separated by commas; spaces around an item and empty items do not count.
    pub fn list(&mut self, key: &'static str) -> Vec<String> {
        self.optional_text(key).map(|text| items(&text).map(str::to_owned).collect()).unwrap_or_default()
    }

    /// A list of values separated by commas. `what` says in the mistake what each is expected to be.
    pub fn list_of<T: FromStr>(&mut self, key: &'static str, what: &str) -> Vec<T> {
        let Some(Found { text, key }) = self.find(key) else { return Vec::new() };
        let mut values = Vec::new();
        for item in items(&text) {
            match item.parse() {
                Ok(value) => values.push(value),
                Err(_) => self.reject(&key, Some(item), format!("expected each item to be {what}")),
            }
        }
        values
    }

    /// The value that `parse` makes of the text without the spaces around it; a problem is noted with the text.
    fn read<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let Found { text, key } = self.find(key)?;
        match parse(text.trim()) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.reject(&key, Some(&text), problem);
                None
            }
        }
    }

    /// Notes that a required key is absent, unless the reason for that was noted already.
    pub(crate) fn missing(&mut self, key: &'static str) {
        if !self.has_mistake(key) {
            self.reject(key, None, format!("is required; set {key} or {key}_FILE"));
        }
    }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let expected = || "expected address:port or :port, such as 127.0.0.1:8765, [::]:8765 or :8765".to_owned();
    if let Some(port) = text.strip_prefix(':') {
        return Ok((Ipv4Addr::UNSPECIFIED, port.parse().map_err(|_| expected())?).into());
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return Ok((Ipv4Addr::LOCALHOST, port.parse().map_err(|_| expected())?).into());
    }
    text.parse().map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Colour {
        Red,
        Green,
    }

    impl Choice for Colour {
        const NAMES: &'static [(&'static str, Self)] = &[("red", Self::Red), ("green", Self::Green)];
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn values_are_read_by_type() {
        let mut env = Env::of([
            ("TEXT", "a b "),
            ("TIME", "2s"),
            ("COUNT", " 12 "),
            ("RATIO", "0.05"),
            ("SIZE_MB", "50"),
            ("ON", "1"),
            ("OFF", "False"),
            ("LISTEN", ":8443"),
            ("LOCAL", "localhost:80"),
            ("SIX", "[::1]:81"),
            ("COLOUR", "GREEN"),
            ("LIST", "a, b,,c ,"),
            ("ADDRESSES", "10.0.0.1,::1"),
        ]);
        assert_eq!(env.text("TEXT", ""), "a b ");
        assert_eq!(env.duration("TIME", SECOND, SECOND..=60 * SECOND), 2 * SECOND);
        assert_eq!(env.number("COUNT", 1_u32, 1..=100), 12);
        assert!((env.number("RATIO", 1.0_f64, 0.0..=1.0) - 0.05).abs() < 1e-9);
        assert_eq!(env.mebibytes("SIZE_MB", 1, 1..=1024), Size::mebibytes(50));
        assert!(env.flag("ON", false));
        assert!(!env.flag("OFF", true));
        assert_eq!(env.listen("LISTEN", ([127, 0, 0, 1], 1)).to_string(), "0.0.0.0:8443");
        assert_eq!(env.listen("LOCAL", ([127, 0, 0, 1], 1)).to_string(), "127.0.0.1:80");
        assert_eq!(env.listen("SIX", ([127, 0, 0, 1], 1)).to_string(), "[::1]:81");
        assert_eq!(env.choice("COLOUR", Colour::Red), Colour::Green);
        assert_eq!(env.list("LIST"), ["a", "b", "c"]);
        assert_eq!(env.list_of::<std::net::IpAddr>("ADDRESSES", "an address").len(), 2);
        env.finish().unwrap();
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let mut env = Env::of::<&str, &str>([]);
        assert_eq!(env.text("TEXT", "x"), "x");
        assert_eq!(env.duration("TIME", SECOND, SECOND..=SECOND), SECOND);
        assert_eq!(env.number("COUNT", 7_u16, 0..=9), 7);
        assert!(env.flag("ON", true));
        assert_eq!(env.choice("COLOUR", Colour::Red), Colour::Red);
        assert_eq!(env.optional_choice::<Colour>("COLOUR"), None);
        assert_eq!(env.listen("LISTEN", ([0, 0, 0, 0], 5)).port(), 5);
        assert!(env.list("LIST").is_empty());
        assert!(env.secret("SECRET").is_none());
        assert!(env.parsed::<f64>("PARSED", "a number").is_none());
        env.finish().unwrap();
    }

    #[test]
    fn a_listener_is_switched_off_by_setting_it_to_nothing() {
        let default = Some(SocketAddr::from(([0, 0, 0, 0], 8443)));
        assert_eq!(Env::of([("L", "")]).optional_listen("L", default), None);
        assert_eq!(Env::of::<&str, &str>([]).optional_listen("L", default), default);
        assert_eq!(Env::of([("L", ":1")]).optional_listen("L", default).map(|a| a.port()), Some(1));
    }

    #[test]
    fn all_mistakes_are_reported_together_with_key_value_and_range() {
        let mut env = Env::of([
            ("TIME", "2"),
            ("LONG", "3h"),
            ("COUNT", "0"),
            ("WHOLE", "1.5"),
            ("ON", "yes"),
            ("LISTEN", "example.org:80"),
            ("COLOUR", "blue"),
            ("LIST", "1,x,y"),
        ]);
        env.duration("TIME", SECOND, SECOND..=60 * SECOND);
        env.duration("LONG", SECOND, Duration::from_millis(500)..=3600 * SECOND);
        env.number("COUNT", 5_u8, 1..=100);
        env.number("WHOLE", 5_i64, 1..=100);
        env.flag("ON", false);
        env.listen("LISTEN", ([0, 0, 0, 0], 1));
        env.choice("COLOUR", Colour::Red);
        env.list_of::<u8>("LIST", "a number");
        env.required_text("NEEDED");
        env.required_secret("HIDDEN");
        let expected = "11 settings are wrong:
  TIME is \"2\": expected a duration from 1s to 1m, such as 500ms, 15s or 2h
  LONG is \"3h\": expected a duration from 500ms to 1h, such as 500ms, 15s or 2h
  COUNT is \"0\": expected a number from 1 to 100
  WHOLE is \"1.5\": expected a number from 1 to 100
  ON is \"yes\": expected true or false
  LISTEN is \"example.org:80\": expected address:port or :port, such as 127.0.0.1:8765, [::]:8765 or :8765
  COLOUR is \"blue\": expected one of red, green
  LIST is \"x\": expected each item to be a number
  LIST is \"y\": expected each item to be a number
  NEEDED: is required; set NEEDED or NEEDED_FILE
  HIDDEN: is required; set HIDDEN or HIDDEN_FILE";
        assert_eq!(env.finish().unwrap_err().to_string(), expected);
    }

    #[test]
    fn numbers_that_are_none_are_out_of_every_range() {
        let mut env = Env::of([("A", "NaN"), ("B", "-1"), ("C", "99999999999999999999")]);
        env.number("A", 0.5_f64, 0.0..=1.0);
        env.number("B", 1_u32, 0..=9);
        env.number("C", 1_u64, 0..=9);
        assert_eq!(env.finish().unwrap_err().0.len(), 3);
    }

    #[test]
    fn a_required_file_that_cannot_be_read_is_one_mistake() {
        let mut env = Env::of([("NEEDED_FILE", "/does/not/exist")]);
        env.required_secret("NEEDED");
        let mistakes = env.finish().unwrap_err();
        assert_eq!(mistakes.0.len(), 1, "{mistakes}");
        assert_eq!(mistakes.0[0].key, "NEEDED_FILE");
    }
}
