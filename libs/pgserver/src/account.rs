//! The user that the server runs as.

use std::fs;
use std::path::Path;

use tokio::process::Command;

use crate::PgServerError;

/// Accounts that a server started by root may run as, in order of preference.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// Another user than the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to run PostgreSQL as: none for an ordinary user, who runs it as himself.
    ///
    /// # Errors
    ///
    /// [`PgServerError::NoAccount`] for root on a machine that has none of the candidates.
    pub(crate) fn for_server() -> Result<Option<Self>, PgServerError> {
        if !is_root() {
            return Ok(None);
        }
        let passwd = Path::new("/etc/passwd");
        let text = fs::read_to_string(passwd).map_err(PgServerError::io("reading", passwd))?;
        Self::choose(&text).map(Some).ok_or(PgServerError::NoAccount)
    }

    fn choose(passwd: &str) -> Option<Self> {
        CANDIDATES.iter().find_map(|name| passwd.lines().find_map(|line| Self::parse(line, name)))
    }

    fn parse(line: &str, name: &str) -> Option<Self> {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (uid != 0).then_some(Self { uid, gid })
    }

    /// Hands a file or folder to this account.
    pub(crate) fn give(&self, path: &Path) -> Result<(), PgServerError> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .map_err(PgServerError::io("giving to the server's user", path))
    }
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command for one of the server's programs: as the given user, in a folder that everybody can enter, with none of
/// the caller's `PG…` variables, and with messages in English, since they are searched for reasons.
pub(crate) fn server_command(program: &Path, account: Option<&Account>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .current_dir("/")
        .stdin(std::process::Stdio::null());
    if let Some(account) = account {
        // The standard library drops the supplementary groups of root together with its user id.
        command.gid(account.gid).uid(account.uid);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533:nobody:/:/sbin/nologin\n";

    #[test]
    fn postgres_is_preferred_and_nobody_is_the_fallback() {
        assert_eq!(Account::choose(PASSWD), Some(Account { uid: 65534, gid: 65533 }));
        let with_postgres = format!("{PASSWD}postgres:x:26:27::/var/lib/pgsql:/bin/sh\n");
        assert_eq!(Account::choose(&with_postgres), Some(Account { uid: 26, gid: 27 }));
    }

    #[test]
    fn an_alias_of_root_or_a_broken_line_is_no_account() {
        assert_eq!(Account::choose("postgres:x:0:0::/:/bin/sh\nnobody:x\nnobodyelse:x:5:5::/:\n"), None);
    }
}
