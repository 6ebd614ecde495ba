//! A component on its way through ConfigMaps: compressed by gzip, cut into parts below what a ConfigMap holds, and joined again.
//!
//! Whoever may write those ConfigMaps says what runs, but shall not be able to exhaust the host: **what comes back is bounded before it is unpacked**. Refuses to judge the component.

use std::io::{self, Read as _, Write as _};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};

/// A ConfigMap holds 1 MiB (1,048,576 bytes of values); in JSON, where four characters stand for three bytes, this much is exactly as long.
const PART: usize = 768 << 10;
/// What a component may have, unpacked: the largest ones of interpreters have some 50 MB.
const LARGEST: u64 = 64 << 20;
/// How gzip begins (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Compresses and cuts. The same component always gives the same parts.
///
/// # Errors
/// Never in practice: writing to memory does not fail.
pub fn pack(wasm: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(wasm)?;
    Ok(gzip.finish()?.chunks(PART).map(<[u8]>::to_vec).collect())
}

/// Joins and decompresses; what is not compressed is taken as it is.
///
/// # Errors
/// It is no gzip after all, or unpacks to more than a component has.
pub fn unpack(parts: &[Bytes]) -> Result<Bytes, String> {
    let joined = parts.concat();
    if !joined.starts_with(&GZIP) {
        return Ok(joined.into());
    }
    let mut wasm = Vec::new();
    let read = GzDecoder::new(joined.as_slice()).take(LARGEST + 1).read_to_end(&mut wasm);
    read.map_err(|e| {
        format!("it begins like gzip and cannot be decompressed: {e}; is a part missing, or are they in another order?")
    })?;
    if wasm.len() as u64 > LARGEST {
        return Err(format!("it decompresses to more than {} MiB, which no component has", LARGEST >> 20));
    }
    Ok(wasm.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Incompressible, so that there are several parts.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn bytes(parts: Vec<Vec<u8>>) -> Vec<Bytes> {
        parts.into_iter().map(Bytes::from).collect()
    }

    #[test]
    fn what_is_packed_comes_back_whole_in_parts_that_a_config_map_holds() {
        let wasm = noise(2_000_000);
        let parts = pack(&wasm).unwrap();
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(|part| part.len() < 1 << 20));
        assert_eq!(parts, pack(&wasm).unwrap());
        assert_eq!(unpack(&bytes(parts)).unwrap(), wasm);
    }

    #[test]
    fn a_component_that_is_not_compressed_is_taken_as_it_is() {
        assert_eq!(unpack(&[Bytes::from_static(b"\0asm"), Bytes::from_static(b"rest")]).unwrap(), b"\0asmrest"[..]);
        assert_eq!(unpack(&[]).unwrap(), b""[..]);
    }

    #[test]
    fn a_part_that_is_missing_and_a_bomb_are_errors() {
        let mut parts = bytes(pack(&noise(2_000_000)).unwrap());
        parts.pop();
        assert!(unpack(&parts).unwrap_err().contains("is a part missing"));
        let bomb = bytes(pack(&vec![0; (65 << 20) as usize]).unwrap());
        assert!(bomb.iter().map(Bytes::len).sum::<usize>() < 1 << 20);
        assert!(unpack(&bomb).unwrap_err().contains("more than 64 MiB"));
    }
}
