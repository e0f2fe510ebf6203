//! The crates of the workspace and their files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, MetadataCommand};
use walkdir::WalkDir;

use crate::rust;

/// The workspace, read once.
#[derive(Debug)]
pub struct Workspace {
    /// Its folder.
    pub root: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
    /// Its crates.
    pub members: Vec<Member>,
    /// All Rust files of its crates.
    pub sources: Vec<Source>,
}

/// What a crate is, by the folder it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `libs/<name>`.
    Lib(String),
    /// `services/<name>`.
    Service(String),
    /// `deploy/local`, the one-command launcher.
    Launcher,
    /// `integration`, the black-box tests, and `integration/bench`, the benchmark.
    Integration,
    /// `integration/tidy`, these rules.
    Tidy,
}

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it is; `None` for a folder that the layout does not know.
    pub place: Option<Place>,
    /// The name in its manifest.
    pub package: String,
    /// Its folder below the root.
    pub dir: PathBuf,
    /// The crates of the workspace that it depends on.
    pub dependencies: Vec<Arrow>,
}

/// A dependency of one crate of the workspace on another.
#[derive(Clone, Debug)]
pub struct Arrow {
    /// The folder of the other crate, below the root.
    pub to: PathBuf,
    /// Whether only tests use it.
    pub is_dev: bool,
    /// The features that are asked for.
    pub features: Vec<String>,
}

/// A Rust file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path below the root.
    pub path: PathBuf,
    /// The folder of its crate, below the root.
    pub krate: PathBuf,
    /// What it says.
    pub text: String,
    /// Whether it is compiled into a library or a program that is not a test.
    pub is_production: bool,
}

impl Place {
    /// The place that a folder below the root stands for.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        let parts: Vec<&str> = dir.iter().filter_map(|part| part.to_str()).collect();
        match parts.as_slice() {
            ["libs", name] => Some(Self::Lib((*name).to_owned())),
            ["services", name] => Some(Self::Service((*name).to_owned())),
            ["deploy", "local"] => Some(Self::Launcher),
            ["integration"] | ["integration", "bench"] => Some(Self::Integration),
            ["integration", "tidy"] => Some(Self::Tidy),
            _ => None,
        }
    }
}

impl Workspace {
    /// Reads the workspace around the current folder.
    ///
    /// # Errors
    ///
    /// When cargo cannot read the manifests, or a source file cannot be read.
    pub fn read() -> anyhow::Result<Self> {
        let metadata = MetadataCommand::new().no_deps().exec().context("the manifests cannot be read")?;
        let root = metadata.workspace_root.into_std_path_buf();
        let below = |path: &Path| path.strip_prefix(&root).unwrap_or(path).to_owned();
        let mut members = Vec::new();
        for package in &metadata.packages {
            let dir = package.manifest_path.parent().map(|dir| below(dir.as_std_path())).unwrap_or_default();
            let arrows = package.dependencies.iter().filter_map(|dependency| {
                let path = dependency.path.as_ref()?;
                Some(Arrow {
                    to: below(path.as_std_path()),
                    is_dev: dependency.kind == DependencyKind::Development,
                    features: dependency.features.clone(),
                })
            });
            members.push(Member {
                place: Place::of(&dir),
                package: package.name.to_string(),
                dependencies: arrows.collect(),
                dir,
            });
        }
        let target = metadata.target_directory.into_std_path_buf();
        let sources = sources(&root, &members)?;
        Ok(Self { root, target, members, sources })
    }

    /// The text files of the whole checkout that people write: sources, SQL, scripts, manifests and prose.
    pub fn texts(&self) -> impl Iterator<Item = PathBuf> {
        const KINDS: [&str; 12] = ["rs", "sql", "md", "toml", "sh", "py", "yml", "yaml", "proto", "html", "css", "js"];
        let is_ours = |path: &Path| {
            let named = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_hidden = named.starts_with('.') && ![".ci", ".github", ".cargo", ".env.example"].contains(&named);
            !is_hidden && named != "target" && path != self.target
        };
        WalkDir::new(&self.root)
            .sort_by_file_name()
            .into_iter()
            .filter_entry(move |entry| entry.depth() == 0 || is_ours(entry.path()))
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_file())
            .map(walkdir::DirEntry::into_path)
            .filter(|path| {
                let kind = path.extension().and_then(|kind| kind.to_str());
                kind.is_none_or(|kind| KINDS.contains(&kind) || kind == "example")
            })
    }
}

/// All Rust files of the crates. A folder with a manifest of its own belongs to that crate.
fn sources(root: &Path, members: &[Member]) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for member in members {
        let top = root.join(&member.dir);
        let entries = WalkDir::new(&top).sort_by_file_name().into_iter().filter_entry(|entry| {
            let is_other_crate = entry.depth() > 0 && entry.path().join("Cargo.toml").is_file();
            entry.file_name() != "target" && !is_other_crate
        });
        let mut read = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.path().extension().is_some_and(|kind| kind == "rs") {
                let text = fs::read_to_string(entry.path())
                    .with_context(|| format!("{} cannot be read", entry.path().display()))?;
                let path = entry.path().strip_prefix(root)?.to_owned();
                let is_production = is_in_program(&member.dir, &path);
                read.push(Source { path, krate: member.dir.clone(), text, is_production });
            }
        }
        mark_test_modules(&mut read)?;
        sources.extend(read);
    }
    Ok(sources)
}

/// Whether a file is of the library or a program, and not a test target.
fn is_in_program(krate: &Path, path: &Path) -> bool {
    path.strip_prefix(krate).is_ok_and(|inner| inner.starts_with("src") || inner == Path::new("build.rs"))
}

/// Takes the files of `#[cfg(test)] mod name;` and all below them out of production.
fn mark_test_modules(sources: &mut [Source]) -> anyhow::Result<()> {
    let mut test_paths = BTreeSet::new();
    for source in sources.iter().filter(|source| source.is_production) {
        let parsed = rust::parse(&source.text).with_context(|| source.path.display().to_string())?;
        let home = module_home(&source.path);
        test_paths.extend(parsed.test_modules.iter().map(|name| home.join(name)));
    }
    for source in sources {
        let stem = source.path.with_extension("");
        if test_paths.iter().any(|path| stem.starts_with(path)) {
            source.is_production = false;
        }
    }
    Ok(())
}

/// The folder that holds the files of a file's modules.
fn module_home(path: &Path) -> PathBuf {
    let is_root = path.file_stem().is_some_and(|stem| stem == "lib" || stem == "main" || stem == "mod");
    if is_root { path.parent().map(Path::to_owned).unwrap_or_default() } else { path.with_extension("") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_known_by_its_folder() {
        assert_eq!(Place::of(Path::new("libs/store")), Some(Place::Lib("store".to_owned())));
        assert_eq!(Place::of(Path::new("deploy/local")), Some(Place::Launcher));
        assert_eq!(Place::of(Path::new("libs/a/b")), None);
    }

    #[test]
    fn files_that_only_tests_compile_are_not_production() {
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            krate: "libs/a".into(),
            text: text.to_owned(),
            is_production: is_in_program(Path::new("libs/a"), Path::new(path)),
        };
        let mut sources = vec![
            source("libs/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod checks;"),
            source("libs/a/src/b.rs", "#[cfg(test)] mod tests;\nmod c;"),
            source("libs/a/src/b/tests.rs", ""),
            source("libs/a/src/b/c.rs", ""),
            source("libs/a/src/checks/mod.rs", ""),
            source("libs/a/src/checks/deep.rs", ""),
            source("libs/a/tests/it.rs", ""),
        ];
        mark_test_modules(&mut sources).unwrap();
        let production: Vec<&str> =
            sources.iter().filter(|s| s.is_production).map(|s| s.path.to_str().unwrap()).collect();
        assert_eq!(production, ["libs/a/src/lib.rs", "libs/a/src/b.rs", "libs/a/src/b/c.rs"]);
    }

    #[test]
    fn this_workspace_can_be_read() {
        let workspace = Workspace::read().unwrap();
        assert!(workspace.members.iter().all(|member| member.place.is_some()), "{:?}", workspace.members);
        let here = workspace.sources.iter().find(|s| s.path == Path::new("integration/tidy/src/workspace.rs"));
        assert!(here.is_some_and(|source| source.is_production));
        assert!(workspace.texts().any(|path| path.ends_with("migrations/0001_platform.sql")));
    }
}
