//! Shelves that are crashed, refused, filled and failed.

use super::{Shelf, ShelfFile};
use crate::error::Error;
use crate::pool::Pool;
use std::path::Path;
use std::sync::Arc;

fn heap() -> Arc<Pool> {
    Pool::heap(1 << 20, 0, [0; 8])
}

fn open(path: &Path) -> Shelf {
    Shelf::open(&heap(), path, true).unwrap()
}

fn contents(file: &ShelfFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn files_are_there_after_a_restart() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("a/shelf");
    let shelf = open(&path);
    for (name, bytes) in [("1.log", "first"), ("2.log", "second"), ("list.new", "1 2")] {
        let file = shelf.create(name).unwrap();
        file.write_at(0, bytes.as_bytes()).unwrap();
        file.data_sync().unwrap();
    }
    assert!(matches!(shelf.create("1.log"), Err(Error::Io { .. })));
    shelf.create("list").unwrap().write_at(0, b"older").unwrap();
    shelf.rename("list.new", "list").unwrap();
    shelf.unlink("1.log").unwrap();
    shelf.sync().unwrap();
    drop(shelf);
    let shelf = open(&path);
    assert_eq!(shelf.names().unwrap(), ["2.log", "list"]);
    assert_eq!(contents(&shelf.open_to_read("list").unwrap()), b"1 2");
    let file = shelf.open_file("2.log").unwrap();
    file.write_at(6, b" and more").unwrap();
    assert_eq!(contents(&file), b"second and more");
    assert!(matches!(shelf.open_file("1.log"), Err(Error::Io { .. })));
}
