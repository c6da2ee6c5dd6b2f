//! The header, compared with this crate: functions, constants, and structs as a C compiler lays them out.
//!
//! Where there is no C compiler, that part says so.

mod support;

use everdram_fabric_c::{ADDRESS_BYTES, Done, Server, VERSION, WAYS, code};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

const HEADER: &str = include_str!("../include/everdram_fabric.h");

/// Names that begin like ours and are followed by `(`, on lines that begin with `start`.
fn functions<'a>(text: &'a str, start: &'a [&'a str]) -> BTreeSet<&'a str> {
    let lines = text.lines().map(str::trim);
    let declared = lines.filter(|line| start.iter().any(|start| line.starts_with(start)));
    let names = declared.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        before.split_whitespace().last()
    });
    names.filter(|name| name.starts_with("everdram_")).collect()
}

#[test]
fn the_header_has_every_function_and_no_other() {
    let ours = functions(
        include_str!("../src/calls.rs"),
        &["pub extern \"C\" fn", "pub unsafe extern \"C\" fn"],
    );
    assert_eq!(ours.len(), 15);
    assert_eq!(functions(HEADER, &["int32_t", "uint32_t", "size_t"]), ours);
}

#[test]
fn the_header_has_every_constant_and_no_other() {
    let mut ours: Vec<(String, i64)> = code::ALL
        .iter()
        .map(|(name, number)| (format!("EVERDRAM_{name}"), i64::from(*number)))
        .collect();
    let ways = WAYS.iter().enumerate();
    ours.extend(ways.map(|(place, (name, _))| (format!("EVERDRAM_WAY_{name}"), place as i64)));
    for (name, number) in [
        ("EVERDRAM_VERSION", i64::from(VERSION)),
        (
            "EVERDRAM_KEY_BYTES_MAX",
            everdram_fabric::KEY_BYTES_MAX as i64,
        ),
        (
            "EVERDRAM_VALUE_BYTES_MAX",
            everdram_fabric::VALUE_BYTES_MAX as i64,
        ),
    ] {
        ours.push((name.to_owned(), number));
    }
    ours.sort();
    let defined = HEADER
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    let mut theirs: Vec<(String, i64)> = defined
        .filter_map(|line| line.split_once(' '))
        .map(|(name, number)| {
            let number = number.trim_matches(['(', ')']);
            (name.to_owned(), number.parse().unwrap())
        })
        .collect();
    theirs.sort();
    assert_eq!(theirs, ours);
}

#[test]
fn a_c_compiler_lays_structs_out_like_this_crate() {
    let Some(cc) = support::Compiler::find() else {
        return;
    };
    let mut expected = vec![
        ("sizeof(everdram_done)".to_owned(), size_of::<Done>()),
        ("sizeof(everdram_server)".to_owned(), size_of::<Server>()),
        (
            "sizeof(((everdram_server *)0)->address)".to_owned(),
            ADDRESS_BYTES,
        ),
        ("sizeof(everdram_client)".to_owned(), 8),
        ("sizeof(everdram_ticket)".to_owned(), 8),
    ];
    macro_rules! offsets {
        ($ours:ident, $theirs:literal: $($field:ident),*) => {
            $(expected.push((
                format!("offsetof({}, {})", $theirs, stringify!($field)),
                offset_of!($ours, $field),
            ));)*
        };
    }
    offsets!(Done, "everdram_done": ticket, code, way, value_bytes, expires_at_ms);
    offsets!(Server, "everdram_server": address, pool, slots, takes_client_centric);
    let mut text =
        String::from("#include \"everdram_fabric.h\"\n#include <stdio.h>\nint main(void) {\n");
    for (what, _) in &expected {
        writeln!(text, "printf(\"%zu\\n\", (size_t){what});").unwrap();
    }
    text.push_str("return 0; }\n");
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("abi.c"), directory.path().join("abi"));
    std::fs::write(&source, text).unwrap();
    cc.compile(&source, &program, &[]);
    let printed = Command::new(&program).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    let printed: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(printed.len(), expected.len());
    for ((what, ours), theirs) in expected.into_iter().zip(printed) {
        assert_eq!(ours, theirs, "{what}");
    }
}
