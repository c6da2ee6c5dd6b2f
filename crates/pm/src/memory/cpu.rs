//! The instructions that move bytes towards persistence, and how one is chosen.
//!
//! orders them; `movntps` writes whole lines past the cache. aarch64: `dc cvap` and `dsb ish`. Under Miri and
//! on other processors these do nothing: memory is then as persistent as the process.

use std::fmt;

/// Bytes of a cache line, the unit of flushing.
pub const LINE: u64 = 64;

/// The instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushKind {
    /// `clwb`: writes back, keeps the line.
    Clwb,
    /// `clflushopt`: writes back and evicts.
    ClflushOpt,
    /// `clflush`: writes back and evicts, one after another.
    Clflush,
    /// `dc cvap` (aarch64): cleans to the point of persistence.
    DcCvap,
    /// Nothing: the caches are inside the persistence domain (eADR), or nothing persists.
    Nothing,
}

impl fmt::Display for FlushKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlushKind::Clwb => "clwb",
            FlushKind::ClflushOpt => "clflushopt",
            FlushKind::Clflush => "clflush",
            FlushKind::DcCvap => "dc cvap",
            FlushKind::Nothing => "nothing",
        })
    }
}

/// The name of [`fence`]'s instruction.
pub(crate) const FENCE: &str = if cfg!(target_arch = "x86_64") {
    "sfence"
} else if cfg!(target_arch = "aarch64") {
    "dsb ish"
} else {
    "a memory fence"
};

impl FlushKind {
    /// The best one this processor has.
    #[must_use]
    pub fn detect() -> FlushKind {
        Self::available()
            .first()
            .copied()
            .unwrap_or(FlushKind::Nothing)
    }

    /// All kinds of this processor, best first.
    #[must_use]
    pub fn available() -> Vec<FlushKind> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let leaf7 = std::arch::x86_64::__cpuid_count(7, 0);
            let mut kinds = Vec::new();
            if leaf7.ebx & (1 << 24) != 0 {
                kinds.push(FlushKind::Clwb);
            }
            if leaf7.ebx & (1 << 23) != 0 {
                kinds.push(FlushKind::ClflushOpt);
            }
            kinds.push(FlushKind::Clflush);
            kinds
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        {
            // HWCAP_DCPOP: cleaning to the point of persistence, from Armv8.2 on.
            let (capabilities, _) = rustix::param::linux_hwcap();
            if capabilities & (1 << 16) != 0 {
                vec![FlushKind::DcCvap]
            } else {
                vec![FlushKind::Nothing]
            }
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        {
            vec![FlushKind::Nothing]
        }
    }
}

/// Starts writing back the line at `line`.
///
/// # Safety
/// `line` points into a live mapping. The contents do not change, so aliasing does not matter.
#[inline]
#[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(unused_variables))]
pub(crate) unsafe fn flush_line(kind: FlushKind, line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    match kind {
        // SAFETY: the line is mapped (caller); clwb exists, `detect` asked CPUID.
        FlushKind::Clwb => unsafe {
            std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
        },
        // SAFETY: the line is mapped (caller); clflushopt exists, `detect` asked CPUID.
        FlushKind::ClflushOpt => unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
        },
        // SAFETY: the line is mapped (caller); clflush is part of x86-64.
        FlushKind::Clflush => unsafe {
            std::arch::asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
        },
        FlushKind::DcCvap | FlushKind::Nothing => {}
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    if kind == FlushKind::DcCvap {
        // SAFETY: the line is mapped (caller). `dc cvap` is `sys #3, c7, c12, #1`, and the processor has it:
        // `detect` asked. Opening a pool on persistent memory fails on processors without it.
        unsafe {
            std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
        }
    }
}

/// Orders every flush and streaming store of this thread before what follows.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: sfence is part of x86-64. Written out, so that the compiler moves no store across it either.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a barrier touches no memory of ours.
    unsafe {
        std::arch::asm!("dsb ish", options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Writes whole lines past the cache.
///
/// # Safety
/// `into` is 64-byte aligned and points at `from.len()` writable mapped bytes that the program accesses
/// through atomics only. The stores are 16 bytes wide and aligned, so no aligned 8-byte word is ever seen
/// torn.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn stream_lines(into: *mut u8, from: &[[u8; 64]]) {
    if from.is_empty() {
        return;
    }
    // SAFETY: `into` as the caller promises; `from` is at least one line of 64 readable bytes.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{f}]",
            "movups {b}, [{f} + 16]",
            "movups {c}, [{f} + 32]",
            "movups {d}, [{f} + 48]",
            "add {f}, 64",
            "movntps [{t}], {a}",
            "movntps [{t} + 16], {b}",
            "movntps [{t} + 32], {c}",
            "movntps [{t} + 48], {d}",
            "add {t}, 64",
            "dec {n}",
            "jnz 2b",
            n = inout(reg) from.len() => _,
            f = inout(reg) from.as_ptr() => _,
            t = inout(reg) into => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Copies words that other threads may be storing to: each aligned 8-byte word arrives whole, from before or
/// after a store.
///
/// # Safety
/// `from` is 8-byte aligned and points at `bytes` mapped bytes, a multiple of 8, that the program writes
/// through atomics only. (The loads are 16 bytes wide; processors load each aligned half of one whole.)
/// `into` points at as many bytes that belong to the caller alone; they need not be initialised, and are
/// afterwards.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy_words(from: *const u8, into: *mut u8, bytes: usize) {
    // SAFETY: loads `bytes` bytes from `from`, mapped (caller), and stores as many to `into`, the caller's
    // own. The last 64 bytes of more are copied together, some of them again.
    unsafe {
        std::arch::asm!(
            "sub {n}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{f}]",
            "movups {b}, [{f} + 16]",
            "movups {c}, [{f} + 32]",
            "movups {d}, [{f} + 48]",
            "add {f}, 64",
            "movups [{t}], {a}",
            "movups [{t} + 16], {b}",
            "movups [{t} + 32], {c}",
            "movups [{t} + 48], {d}",
            "add {t}, 64",
            "sub {n}, 64",
            "jae 2b",
            "cmp {n}, -64",
            "je 6f",
            "movups {a}, [{f} + {n}]",
            "movups {b}, [{f} + {n} + 16]",
            "movups {c}, [{f} + {n} + 32]",
            "movups {d}, [{f} + {n} + 48]",
            "movups [{t} + {n}], {a}",
            "movups [{t} + {n} + 16], {b}",
            "movups [{t} + {n} + 32], {c}",
            "movups [{t} + {n} + 48], {d}",
            "jmp 6f",
            "3:",
            "add {n}, 48",
            "js 5f",
            "4:",
            "movups {a}, [{f}]",
            "add {f}, 16",
            "movups [{t}], {a}",
            "add {t}, 16",
            "sub {n}, 16",
            "jns 4b",
            "5:",
            "add {n}, 16",
            "jz 6f",
            "mov {f}, [{f}]",
            "mov [{t}], {f}",
            "6:",
            n = inout(reg) bytes => _,
            f = inout(reg) from => _,
            t = inout(reg) into => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Prefetches a line. A hint: any address is allowed.
#[inline]
#[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(unused_variables))]
pub(crate) fn prefetch_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither faults nor changes anything the program can see.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

/// As [`prefetch_line`], of one, two or four lines.
#[inline(always)]
#[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(unused_variables))]
pub(crate) fn prefetch_lines<const LINES: usize>(first: *const u8) {
    const { assert!(matches!(LINES, 1 | 2 | 4)) };
    prefetch_line(first);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if LINES >= 2 {
        // SAFETY: as in `prefetch_line`. One address for all lines saves instructions.
        unsafe {
            std::arch::asm!("prefetcht0 [{} + 64]", in(reg) first, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if LINES == 4 {
        // SAFETY: as in `prefetch_line`.
        unsafe {
            std::arch::asm!(
                "prefetcht0 [{0} + 128]", "prefetcht0 [{0} + 192]",
                in(reg) first, options(nostack, preserves_flags, readonly)
            );
        }
    }
}

/// Prefetches the first lines of bytes, up to four.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(64).take(4) {
        prefetch_line(line.as_ptr());
    }
}

/// As [`prefetch_line`], for a line that is to be written.
#[inline]
#[cfg_attr(any(miri, not(target_arch = "x86_64")), allow(unused_variables))]
pub(crate) fn prefetch_line_to_write(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither faults nor changes anything the program can see; processors without this
    // hint treat it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::{Heap, Region};

    /// Each instruction this processor has runs on ordinary memory and leaves the bytes as they were.
    #[test]
    fn every_available_flush_runs_and_changes_nothing() {
        let region = Region::new(Box::new(Heap::new(8192)), 8192, None);
        let mut kinds = FlushKind::available();
        assert!(!kinds.is_empty());
        assert_eq!(kinds.first(), Some(&FlushKind::detect()));
        kinds.push(FlushKind::Nothing);
        for kind in kinds {
            for (at, bytes) in [(0, 8), (56, 16), (64, 64), (4096 - 8, 8), (0, 8192)] {
                let wanted: Vec<u8> = (0..bytes).map(|byte| byte as u8 ^ kind as u8).collect();
                region.store(at, &wanted);
                region.flush(kind, crate::memory::lane::lines_of(at, bytes));
                fence();
                let mut found = vec![0; bytes as usize];
                region.load(at, &mut found);
                assert_eq!(found, wanted, "{kind} at {at}");
            }
        }
    }

    #[test]
    fn streamed_lines_arrive_whole_and_in_place() {
        let region = Region::new(Box::new(Heap::new(4096)), 4096, None);
        let lines: Vec<u8> = (0..192).collect();
        region.stream(FlushKind::detect(), 64, &lines);
        fence();
        let mut found = [0xff; 320];
        region.load(0, &mut found);
        assert_eq!(found[..64], [0; 64]);
        assert_eq!(found[64..256], lines);
        assert_eq!(found[256..], [0; 64]);
    }
}
