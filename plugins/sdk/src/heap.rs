//! The heap of a component: it lies in memory that an instance has from the start, and grows only when that is used up.
//!
//! Each reconcile starts in a fresh instance, and the allocator of `std` begins by growing the memory: the host has to change the protection of the new
//! pages and to change it back afterwards, which costs more than all else that is fresh about an instance. Memory that is part of the module from the
//! start costs nothing until it is touched.
//!
//! This is the one place of the SDK with `unsafe` written by hand: whoever provides an allocator has to vouch for the memory behind it. It does not
//! allocate, free or move anything itself; that is talc's.
#![allow(unsafe_code)]

use std::{alloc::Layout, arch::wasm32::memory_grow, mem::MaybeUninit};

use talc::{
    base::{CHUNK_UNIT, Talc, binning::Binning},
    cell::TalcSyncCell,
    source::Source,
    wasm::WasmBinning,
};

/// As much as an ordinary reconcile uses, and more.
const FIRST: usize = 512 << 10;
/// The least by which memory grows after that, so that a reconcile that needs much does not grow it often.
const STEP: usize = 1 << 20;
/// A page of WebAssembly.
const PAGE: usize = 64 << 10;

/// What the heap begins with. All zeroes, so that it takes no room in the component.
static mut REGION: [MaybeUninit<u8>; FIRST] = [MaybeUninit::uninit(); FIRST];

#[global_allocator]
static HEAP: TalcSyncCell<FirstThenGrow, WasmBinning> = TalcSyncCell::new_wasm(FirstThenGrow { claimed: false });

/// Gives the heap [`REGION`] first, then what the memory grows by.
#[derive(Debug)]
struct FirstThenGrow {
    claimed: bool,
}

// SAFETY: nothing here allocates, and the heap is reached through the reference that `acquire` is given alone.
unsafe impl Source for FirstThenGrow {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        if !talc.source.claimed {
            talc.source.claimed = true;
            // SAFETY: nothing but this line names the region, and it runs once.
            let claimed = unsafe { talc.claim((&raw mut REGION).cast(), FIRST) };
            return claimed.map(drop).ok_or(());
        }
        // Room for the allocation, what talc notes beside it, and where it has to be moved to be aligned.
        let needed =
            layout.size().checked_add(layout.align()).and_then(|size| size.checked_add(3 * CHUNK_UNIT)).ok_or(())?;
        let pages = needed.max(STEP).div_ceil(PAGE);
        let before = memory_grow::<0>(pages);
        if before == usize::MAX {
            return Err(());
        }
        // SAFETY: the memory grew by these pages just now, so that nobody else knows them.
        let claimed = unsafe { talc.claim(std::ptr::without_provenance_mut(before * PAGE), pages * PAGE) };
        claimed.map(drop).ok_or(())
    }
}
