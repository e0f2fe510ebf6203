//! How a cluster's server is run.

use std::time::Duration;

/// Settings of one start.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// The port on 127.0.0.1; `None` takes a free one.
    pub port: Option<u16>,
    /// Whether a commit survives a crash of the machine. Without it the server is several times faster, which is for
    /// tests whose data is thrown away.
    pub durable: bool,
    /// How many connections the server accepts.
    pub max_connections: u32,
    /// The server's own cache, in MiB.
    pub shared_buffers_mib: u32,
    /// How long creating the cluster and starting the server may each take. A start after a crash replays the log.
    pub start_deadline: Duration,
    /// How long an orderly stop may take before the server is told to drop everything.
    pub stop_deadline: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            port: None,
            durable: true,
            max_connections: 200,
            shared_buffers_mib: 128,
            start_deadline: Duration::from_secs(120),
            stop_deadline: Duration::from_secs(30),
        }
    }
}

impl ClusterOptions {
    /// The settings for data that is thrown away.
    #[must_use]
    pub fn for_tests() -> Self {
        Self { durable: false, max_connections: 400, ..Self::default() }
    }

    /// The settings as the server reads them on its command line.
    pub(crate) fn server_settings(&self, port: u16, small_shared_memory: bool) -> Vec<String> {
        let mut settings = vec![
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            "unix_socket_directories=".to_owned(),
            "shared_preload_libraries=".to_owned(),
            format!("max_connections={}", self.max_connections),
            format!("shared_buffers={}MB", self.shared_buffers_mib),
            "timezone=UTC".to_owned(),
            "log_timezone=UTC".to_owned(),
            // Statements and details can hold document text, which a log must not.
            "log_min_error_statement=panic".to_owned(),
            "log_error_verbosity=terse".to_owned(),
        ];
        if small_shared_memory {
            // A container's /dev/shm of 64 MB is too small for one parallel index build.
            settings.push("dynamic_shared_memory_type=mmap".to_owned());
        }
        if !self.durable {
            let careless = [
                "fsync=off",
                "synchronous_commit=off",
                "full_page_writes=off",
                "wal_level=minimal",
                "max_wal_senders=0",
                "max_wal_size=256MB",
            ];
            settings.extend(careless.map(str::to_owned));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_throwaway_cluster_gives_up_durability() {
        let kept = ClusterOptions::default().server_settings(5432, false).join(" ");
        let thrown_away = ClusterOptions::for_tests().server_settings(5432, false).join(" ");
        assert!(!kept.contains("fsync") && !kept.contains("synchronous_commit") && !kept.contains("full_page"));
        assert!(thrown_away.contains("fsync=off") && thrown_away.contains("max_connections=400"));
    }
}
