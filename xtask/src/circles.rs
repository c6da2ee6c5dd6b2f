//! Circles of imports: files of a crate that need each other, directly or through others.
//!
//! `use crate::...` and `use super::...` outside tests count. A `mod.rs` and its own parts may import each
//! other: they are one idea in one folder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Imports that close a circle and stay: a crate, a module of it, what that imports, and why.
type Exception<'a> = (&'a str, &'a str, &'a str, &'a str);
const EXCEPTIONS: [Exception<'_>; 0] = [];

/// Modules of a crate (`figure::measure`), each with those that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Judges the sources of a workspace, each a name and a text.
pub(crate) fn check(sources: &[(String, String)], findings: &mut Vec<String>) {
    check_but(&EXCEPTIONS, sources, findings);
}

fn check_but(
    exceptions: &[Exception<'_>],
    sources: &[(String, String)],
    findings: &mut Vec<String>,
) {
    let mut crates: BTreeMap<&str, BTreeMap<String, &str>> = BTreeMap::new();
    for (name, text) in sources {
        if let Some((package, file)) = name.split_once("/src/")
            && !file.contains("tests")
        {
            let modules = crates.entry(package).or_default();
            modules.insert(module_of(file), text);
        }
    }
    for (package, texts) in crates {
        let imports = |(module, text): (&String, &&str)| {
            let of = imported(module, text, |path| texts.contains_key(path));
            (module.clone(), of)
        };
        let mut imports: Imports = texts.iter().map(imports).collect();
        for (_, from, to, _) in exceptions.iter().filter(|(of, ..)| *of == package) {
            if !imports.get_mut(*from).is_some_and(|of| of.remove(*to)) {
                findings.push(format!(
                    "{package}/src:1: `{from}` does not import `{to}`: an exception too many"
                ));
            }
        }
        let mut told = BTreeSet::new();
        for module in imports.keys() {
            if let Some(circle) = circle(&imports, module)
                && !circle.iter().any(|module| told.contains(*module))
            {
                let way = circle.join(" -> ");
                findings.push(format!(
                    "{package}/src:1: a circle of imports: {way} -> {module}"
                ));
                told.extend(circle);
            }
        }
    }
}

/// `figure/mod.rs` is `figure`, `lib.rs` the empty name.
fn module_of(file: &str) -> String {
    let path = file.trim_end_matches(".rs").replace('/', "::");
    match path.rsplit_once("::") {
        Some((folder, "mod")) => folder.into(),
        None if ["lib", "main"].contains(&path.as_str()) => String::new(),
        _ => path,
    }
}

/// The modules that `text` imports, but for those above and below it.
fn imported(module: &str, text: &str, is_module: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    let code = code
        .collect::<Vec<_>>()
        .join(" ")
        .replace("#[cfg(test)] use ", "");
    let mut imported = BTreeSet::new();
    for part in code.split(" use ").skip(1) {
        let tree: String = part
            .split(';')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        for path in leaves(&tree) {
            let mut names: VecDeque<&str> = path.split("::").collect();
            let mut whole: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
            match names.front() {
                Some(&"crate") => whole.clear(),
                Some(&"super") => {}
                _ => continue,
            }
            while let Some(name) = names.pop_front() {
                match name {
                    "crate" => {}
                    "super" => _ = whole.pop(),
                    name => whole.push(name),
                }
            }
            // An item is in the file of its module.
            while !whole.is_empty() && !is_module(&whole.join("::")) {
                whole.pop();
            }
            let found = whole.join("::");
            if !is_within(&found, module) && !is_within(module, &found) {
                imported.insert(found);
            }
        }
    }
    imported
}

fn is_within(module: &str, other: &str) -> bool {
    other.is_empty() || module == other || module.starts_with(&format!("{other}::"))
}

/// The paths of `a::{b, c::{d, e}}`, without spaces.
fn leaves(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![tree.into()];
    };
    let (mut paths, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, letter) in rest.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let below = leaves(&rest[begin..at]);
                paths.extend(below.iter().map(|path| format!("{head}{path}")));
                begin = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    paths
}

/// The shortest way from a module back to itself.
fn circle<'a>(imports: &'a Imports, module: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in imports.get(*way.last()?)? {
            if next == module {
                return Some(way);
            }
            if seen.insert(next) {
                ways.push_back([&way[..], &[next]].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_and_folders_are_one() {
        let judge = |exceptions: &[Exception<'_>], files: &[(&str, &str)]| {
            let source =
                |(name, text): &(&str, &str)| (format!("crates/x/src/{name}"), (*text).into());
            let mut findings = Vec::new();
            check_but(
                exceptions,
                &files.iter().map(source).collect::<Vec<_>>(),
                &mut findings,
            );
            findings
        };
        let a = ("a.rs", "//! A.\n\nuse crate::{d::D,\n    b::{C, c::E}};\n");
        let b = ("b/mod.rs", "//! B.\n\nmod c;\nuse c::E;\n");
        let c = ("b/c.rs", "//! C.\nuse super::super::d;\nuse super::B;\n");
        let d = ("d.rs", "//! D.\nfn f() {\n    use super::a::{self};\n}\n");
        let found = judge(&[], &[a, b, c, d]);
        assert_eq!(found, ["crates/x/src:1: a circle of imports: a -> d -> a"]);
        let exception = ("crates/x", "a", "d", "so");
        let found = judge(&[exception], &[a, b, c, d]);
        assert_eq!(
            found,
            ["crates/x/src:1: a circle of imports: a -> b::c -> d -> a"]
        );
        let test = (
            "d.rs",
            "//! D.\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        );
        assert_eq!(judge(&[], &[a, b, c, test]), Vec::<String>::new());
        assert_eq!(judge(&[exception, exception], &[a, b, c, test]).len(), 1);
    }
}
