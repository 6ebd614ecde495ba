//! Makes an input of another: documents are changed as the trees that they are, so that most of what comes out still parses and reaches what lies behind the parser.

use serde_json::{Map, Value};

/// What attackers write where a name, a number or a text is expected.
const TRICKS: [&str; 42] = [
    "",
    ".",
    "..",
    "../",
    "/",
    "//",
    "\\",
    "%2f",
    "%2e%2e",
    "?",
    "#",
    "&",
    "=",
    ",",
    "!",
    "(",
    ")",
    " in ",
    "*",
    "*/status",
    "\r\n",
    "\n",
    "\0",
    "\t",
    "\u{1b}[31m",
    "\u{202e}",
    "\u{2215}",
    "\u{ff0e}",
    "\u{430}",
    "\u{feff}",
    "'",
    "\"",
    "`",
    ";",
    "--",
    "-0",
    "1e400",
    "18446744073709551616",
    "0.1",
    "null",
    "metadata",
    "operetta:",
];
/// Bytes that mean something in a component: lengths without end, section numbers, magic.
const BYTES: [&[u8]; 10] = [
    b"\0asm",
    b"\x0d\0\x01\0",
    b"\x01\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\0",
    b"\x80\0",
    b"\0",
    b"\x04",
    b"\x0b",
    b"\x11operetta:manifest",
];
/// The longest input that is made.
const MOST: usize = 64 << 10;

/// Dice that always fall alike after the same seed (SplitMix64).
pub struct Dice(u64);

impl Dice {
    /// With a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `sides`; 0 where there are none.
    pub fn below(&mut self, sides: usize) -> usize {
        usize::try_from(self.roll() % (sides.max(1) as u64)).unwrap_or_default()
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Another input, made of `one`, and of pieces of `other`.
pub fn mutate(one: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut made = match serde_json::from_slice::<Value>(one) {
        Ok(mut value) if dice.below(8) > 0 => {
            let pieces = serde_json::from_slice(other).unwrap_or(Value::Null);
            for _ in 0..=dice.below(3) {
                let mut at = dice.below(nodes(&value));
                change(&mut value, &mut at, &pieces, dice);
            }
            value.to_string().into_bytes()
        }
        _ => {
            let mut bytes = one.to_vec();
            for _ in 0..=dice.below(4) {
                scramble(&mut bytes, other, dice);
            }
            bytes
        }
    };
    made.truncate(MOST);
    made
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// The node that is counted down to.
fn node<'a>(value: &'a Value, at: &mut usize) -> Option<&'a Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter().find_map(|item| node(item, at)),
        Value::Object(fields) => fields.values().find_map(|field| node(field, at)),
        _ => None,
    }
}

/// Changes the node that is counted down to; whether it was found.
fn change(value: &mut Value, at: &mut usize, pieces: &Value, dice: &mut Dice) -> bool {
    if *at == 0 {
        alter(value, pieces, dice);
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, at, pieces, dice)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, at, pieces, dice)),
        _ => false,
    }
}

fn alter(value: &mut Value, pieces: &Value, dice: &mut Dice) {
    if dice.below(6) == 0 {
        let mut at = dice.below(nodes(pieces));
        *value = node(pieces, &mut at).cloned().unwrap_or(Value::Null);
        return;
    }
    match value {
        Value::Object(fields) => alter_map(fields, dice),
        Value::Array(items) => {
            let at = dice.below(items.len());
            match dice.below(4) {
                0 if !items.is_empty() => drop(items.remove(at)),
                1 if !items.is_empty() => items.push(items[at].clone()),
                2 if !items.is_empty() => items.swap(0, at),
                _ => items.push(scalar(dice)),
            }
        }
        Value::String(text) if dice.below(4) > 0 => {
            let mut bytes = std::mem::take(text).into_bytes();
            scramble(&mut bytes, b"", dice);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        _ => *value = scalar(dice),
    }
}

fn alter_map(fields: &mut Map<String, Value>, dice: &mut Dice) {
    let at = dice.below(fields.len());
    let name = fields.keys().nth(at).cloned();
    match (dice.below(4), name) {
        (0, Some(name)) => drop(fields.remove(&name)),
        (1, Some(name)) => {
            let value = fields.remove(&name).unwrap_or_default();
            fields.insert(format!("{name}{}", dice.of(&TRICKS)), value);
        }
        (2, Some(name)) => {
            // Deeper.
            let value = fields.remove(&name).unwrap_or_default();
            fields.insert(name.clone(), Value::Object([(name, value)].into_iter().collect()));
        }
        _ => {
            fields.insert(dice.of(&TRICKS).to_owned(), scalar(dice));
        }
    }
}

fn scalar(dice: &mut Dice) -> Value {
    match dice.below(9) {
        0 => Value::Null,
        1 => (dice.below(2) == 0).into(),
        2 => dice.of(&[0, 1, -1, 63, 64, 253, 254, i64::MAX, i64::MIN]).into(),
        3 => u64::MAX.into(),
        4 => dice.of(&[0.1, -0.0, 1e300, 1.5, 9_007_199_254_740_993.0]).into(),
        5 => Value::Array(Vec::new()),
        6 => Value::Object(Map::new()),
        7 => "a".repeat(dice.of(&[1, 63, 64, 253, 254, 5_000])).into(),
        _ => dice.of(&TRICKS).into(),
    }
}

fn scramble(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let end = (at + 1 + dice.below(16)).min(bytes.len());
    match dice.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        1 if at < bytes.len() => bytes[at] = u8::try_from(dice.below(256)).unwrap_or_default(),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let piece = bytes[at..end].to_vec();
            let to = dice.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        4 => {
            let from = dice.below(other.len());
            let piece = other[from..(from + 1 + dice.below(64)).min(other.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        5 => drop(bytes.splice(at..at, dice.of(&BYTES).iter().copied())),
        6 if dice.below(8) == 0 => bytes.truncate(at),
        _ => drop(bytes.splice(at..at, dice.of(&TRICKS).bytes())),
    }
}
