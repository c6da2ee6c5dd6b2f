//! Pins the size, alignment and offsets of a persistent struct at compile time.

/// States, at compile time, the size of a persistent struct and where its fields lie.
///
/// ```
/// #[repr(C)]
/// struct Word { low: u32, high: u32 }
/// everdram_pm::assert_layout!(Word, size 8, align 4, { low @ 0, high @ 4 });
/// ```
#[macro_export]
macro_rules! assert_layout {
    ($t:ty, size $size:expr, align $align:expr, { $($field:ident @ $at:expr),* $(,)? }) => {
        const _: () = {
            assert!(::core::mem::size_of::<$t>() == $size);
            assert!(::core::mem::align_of::<$t>() == $align);
            $(assert!(::core::mem::offset_of!($t, $field) == $at);)*
        };
    };
}
