//! Which crate may depend on which.

use crate::workspace::Arrow;
use crate::{Finding, Member, Place, Workspace};

/// The libraries that each library may use. A library is added here first, with a reason to exist of its own.
const LIBS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("config", &["domain"]),
    ("vault", &["domain"]),
    ("proto", &[]),
    ("tokens", &["domain"]),
    ("extract", &["domain", "tokens"]),
    ("telemetry", &["config"]),
    ("store", &["domain", "config", "vault", "telemetry"]),
    ("ledger", &["domain", "config", "store", "tokens", "telemetry"]),
    ("providers", &["domain", "config", "tokens", "telemetry"]),
    ("retrieval", &["domain", "store", "providers", "ledger", "tokens", "telemetry"]),
    ("pgserver", &["config", "telemetry"]),
    ("upstream", &["domain", "tokens"]),
    ("runtime", &["config", "telemetry", "store"]),
];

/// What the tests of every library may use as well.
const FOR_TESTS: [&str; 2] = ["testkit", "upstream"];

/// What the black-box tests may use: the services only as processes.
const FOR_INTEGRATION: [&str; 4] = ["testkit", "proto", "upstream", "store"];

/// The feature of `store` that makes and looks into databases for tests.
const TESTING: &str = "testing";

/// Reports every dependency that is not allowed.
#[must_use]
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace.members.iter().flat_map(check_member).collect()
}

fn check_member(member: &Member) -> Vec<Finding> {
    let Some(from) = &member.place else {
        return vec![Finding::about(
            &member.package,
            format!("{} is no folder for a crate; see the layout", member.dir.display()),
        )];
    };
    if let Place::Lib(name) = from
        && name != "testkit"
        && allowed_libs(name).is_none()
    {
        return vec![Finding::about(&member.package, "has no row in the table of arrows of integration/tidy")];
    }
    let mut findings = Vec::new();
    for arrow in &member.dependencies {
        let to = Place::of(&arrow.to);
        if !to.as_ref().is_some_and(|to| may_depend(from, to, arrow.is_dev)) {
            let how = if arrow.is_dev { "in its tests" } else { "at all" };
            findings.push(Finding::about(&member.package, format!("may not use {} {how}", arrow.to.display())));
        } else if asks_for_testing(arrow) && !arrow.is_dev && !may_test(from) {
            findings.push(Finding::about(
                &member.package,
                format!("may use the feature {TESTING} of {} in its tests only", arrow.to.display()),
            ));
        }
    }
    findings
}

fn may_depend(from: &Place, to: &Place, is_dev: bool) -> bool {
    let Place::Lib(lib) = to else {
        return matches!((from, to), (Place::Launcher | Place::Tidy, Place::Service(_)));
    };
    let lib = lib.as_str();
    match from {
        Place::Lib(name) if name == "testkit" => true,
        Place::Lib(name) => {
            allowed_libs(name).is_some_and(|allowed| allowed.contains(&lib)) || is_dev && FOR_TESTS.contains(&lib)
        }
        Place::Service(_) | Place::Launcher => is_dev || lib != "testkit",
        Place::Integration => FOR_INTEGRATION.contains(&lib),
        Place::Tidy => true,
    }
}

fn allowed_libs(name: &str) -> Option<&'static [&'static str]> {
    LIBS.iter().find(|(lib, _)| *lib == name).map(|(_, allowed)| *allowed)
}

fn asks_for_testing(arrow: &Arrow) -> bool {
    arrow.features.iter().any(|feature| feature == TESTING)
}

fn may_test(from: &Place) -> bool {
    matches!(from, Place::Integration | Place::Tidy) || *from == Place::Lib("testkit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(dir: &str, arrows: &[(&str, bool, &[&str])]) -> Vec<String> {
        let arrow = |(to, is_dev, features): &(&str, bool, &[&str])| Arrow {
            to: to.into(),
            is_dev: *is_dev,
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
        };
        let member = Member {
            place: Place::of(dir.as_ref()),
            package: "p".to_owned(),
            dir: dir.into(),
            dependencies: arrows.iter().map(arrow).collect(),
        };
        check_member(&member).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_table_says_is_allowed() {
        for (from, to) in [
            ("libs/store", "libs/config"),
            ("libs/testkit", "libs/retrieval"),
            ("services/edge", "libs/ledger"),
            ("deploy/local", "services/edge"),
            ("integration", "libs/store"),
        ] {
            assert_eq!(problems(from, &[(to, false, &[])]), [""; 0], "{from} -> {to}");
        }
        assert_eq!(problems("libs/store", &[("libs/testkit", true, &[])]), [""; 0]);
    }

    #[test]
    fn every_other_arrow_is_a_finding() {
        for (from, to, is_dev) in [
            ("libs/domain", "libs/config", false),
            ("libs/store", "libs/ledger", false),
            ("libs/store", "libs/testkit", false),
            ("libs/config", "libs/store", true),
            ("libs/upstream", "services/edge", false),
            ("services/edge", "services/admin", false),
            ("services/edge", "services/admin", true),
            ("services/edge", "libs/testkit", false),
            ("integration", "services/edge", true),
            ("integration", "libs/ledger", false),
            ("services/edge", "deploy/local", false),
            ("services/edge", "elsewhere", false),
        ] {
            assert_eq!(problems(from, &[(to, is_dev, &[])]).len(), 1, "{from} -> {to}");
        }
    }

    #[test]
    fn test_databases_are_for_tests() {
        let testing: &[&str] = &["testing"];
        assert_eq!(problems("services/edge", &[("libs/store", true, testing)]), [""; 0]);
        assert_eq!(problems("libs/testkit", &[("libs/store", false, testing)]), [""; 0]);
        assert_eq!(
            problems("services/edge", &[("libs/store", false, testing)]),
            ["p: may use the feature testing of libs/store in its tests only"]
        );
    }

    #[test]
    fn a_crate_outside_the_layout_is_a_finding() {
        assert_eq!(problems("libs/new", &[]), ["p: has no row in the table of arrows of integration/tidy"]);
        assert_eq!(problems("tools/new", &[]), ["p: tools/new is no folder for a crate; see the layout"]);
    }
}
