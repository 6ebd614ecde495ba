//! Pets.

fn main() {}
