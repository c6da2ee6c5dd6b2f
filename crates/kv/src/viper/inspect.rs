//! What viper tells about its pool: geometry, blocks and how full they are.

use super::Viper;
use super::block_table::State;
use super::layout::Kind;
use crate::stats::{Inspection, KindCount};

/// Adds what only viper knows.
pub(super) fn describe(viper: &Viper, inspection: &mut Inspection) {
    let geometry = &viper.geometry;
    let mut field = |name: &str, value: String| inspection.fields.push((name.into(), value));
    field("page bytes", geometry.page_bytes.to_string());
    field("pages of a block (DIMMs)", geometry.pages.to_string());
    field("block bytes", geometry.block_bytes.to_string());
    if let Some(shape) = geometry.fixed {
        let text = format!("key {} bytes, value {} bytes", shape.key, shape.value);
        field("fixed-size records", text);
    }
    (inspection.kinds, inspection.space_map) = count(viper);
}

fn count(viper: &Viper) -> (Vec<KindCount>, Vec<u8>) {
    let mut kinds: Vec<KindCount> = ["variable", "fixed", "large", "overflow", "free"]
        .map(|kind| KindCount {
            kind,
            ..KindCount::default()
        })
        .into();
    let mut map = Vec::new();
    for block in viper.blocks.all() {
        let Some(entry) = viper.blocks.get(block) else {
            continue;
        };
        let info = entry.info();
        let pages = viper.geometry.pages_of(info.kind);
        let room = pages.room() * pages.count;
        let live = u64::from(entry.live());
        let (index, live) = match (info.state, info.kind) {
            (State::Free | State::Outside, _) | (_, Kind::Free) => (4, None),
            (_, Kind::Variable) => (0, Some(live)),
            (_, Kind::Fixed | Kind::FixedEdited) => (1, Some(live)),
            (_, Kind::Large) => (2, Some(live)),
            (_, Kind::Overflow) => (3, Some(u64::from(entry.filled()))),
        };
        map.push(live.map_or(255, |live| (live * 100 / room.max(1)).min(100) as u8));
        if let Some(kind) = kinds.get_mut(index) {
            kind.blocks += 1;
            kind.filled_bytes += u64::from(entry.filled());
            kind.garbage_bytes += u64::from(entry.garbage());
        }
    }
    (kinds, map)
}
