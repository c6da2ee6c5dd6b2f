//! Structs as this crate has them, compared with the library's own headers by a C program.
//!
//! Where there is no C compiler or no header, the test says so and passes.

use everdram_fabric_sys::{Layout, layouts};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

#[test]
fn structs_are_as_in_the_headers() {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return println!("skipped: no rdma/fabric.h; install Debian's `libfabric-dev`");
    }
    let directory = std::env::temp_dir().join(format!("everdram-abi-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, program) = (directory.join("abi.c"), directory.join("abi"));
    std::fs::write(&source, c_program(&layouts())).unwrap();
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .output();
    let printed = match compiled {
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            None
        }
        Ok(out) if !out.status.success() => panic!("{}", String::from_utf8_lossy(&out.stderr)),
        Ok(_) => Some(Command::new(&program).output().unwrap()),
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let Some(printed) = printed else { return };
    let printed = String::from_utf8(printed.stdout).unwrap();
    let mut numbers = printed.lines().map(|line| line.parse::<usize>().unwrap());
    let mut count = 0;
    for layout in layouts() {
        let bytes = numbers.next().unwrap();
        if is_cut_off(layout.name) {
            assert!(
                layout.bytes <= bytes,
                "{} has {} bytes, {bytes} in C",
                layout.name,
                layout.bytes
            );
        } else {
            assert_eq!(layout.bytes, bytes, "size of {}", layout.name);
        }
        for (field, offset) in layout.fields {
            assert_eq!(
                offset,
                numbers.next().unwrap(),
                "offset of {}.{field}",
                layout.name
            );
            count += 1;
        }
    }
    assert_eq!(numbers.next(), None);
    println!("{count} offsets agree");
}

/// Tables of functions, and objects with tables behind the last one that is used, are not declared to their
/// end.
fn is_cut_off(name: &str) -> bool {
    name.starts_with("fi_ops") || name == "fid_ep"
}

fn c_program(layouts: &[Layout]) -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in [
        "fabric",
        "fi_cm",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_rma",
    ] {
        writeln!(text, "#include <rdma/{header}.h>").unwrap();
    }
    text.push_str("int main(void) {\n");
    for layout in layouts {
        writeln!(text, "printf(\"%zu\\n\", sizeof(struct {}));", layout.name).unwrap();
        for (field, _) in &layout.fields {
            let field = if *field == "kind" { "type" } else { field };
            writeln!(
                text,
                "printf(\"%zu\\n\", offsetof(struct {}, {field}));",
                layout.name
            )
            .unwrap();
        }
    }
    text.push_str("return 0; }\n");
    text
}
