//! Protocol buffers as they go over the wire (protobuf.dev, "Encoding"), as far as a test speaks them: texts, numbers, maps
//! and messages within messages.

/// Wire types of that page.
const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

/// A message that is being written.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// An empty one, which means defaults all over.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a number, or a value of an enumeration.
    pub fn number(mut self, field: u64, value: u64) -> Self {
        put_varint(&mut self.0, field << 3 | VARINT);
        put_varint(&mut self.0, value);
        self
    }

    /// Adds a text; of a repeated field, one more.
    pub fn text(self, field: u64, value: &str) -> Self {
        self.delimited(field, value.as_bytes())
    }

    /// Adds each of `values` to a repeated field.
    pub fn texts(self, field: u64, values: &[&str]) -> Self {
        values.iter().fold(self, |message, value| message.text(field, value))
    }

    /// Adds a message.
    pub fn message(self, field: u64, value: &Message) -> Self {
        self.delimited(field, &value.0)
    }

    /// Adds `pairs` to a map of texts.
    pub fn map(self, field: u64, pairs: &[(&str, &str)]) -> Self {
        pairs
            .iter()
            .fold(self, |message, (key, value)| message.message(field, &Self::new().text(1, key).text(2, value)))
    }

    fn delimited(mut self, field: u64, value: &[u8]) -> Self {
        put_varint(&mut self.0, field << 3 | LENGTH_DELIMITED);
        put_varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A field of a message that was read.
#[derive(Debug, PartialEq, Eq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first text or message in `field`.
pub fn bytes_in(message: &[u8], field: u64) -> Option<&[u8]> {
    fields(message).find_map(|(number, value)| match value {
        Value::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    })
}

/// The first text in `field`.
pub fn text_in(message: &[u8], field: u64) -> Option<String> {
    bytes_in(message, field).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The number in `field`; one that is not there is zero.
pub fn number_in(message: &[u8], field: u64) -> u64 {
    let found = fields(message).find_map(|(number, value)| match value {
        Value::Number(value) if number == field => Some(value),
        _ => None,
    });
    found.unwrap_or(0)
}

/// The value for `key` in the map in `field`.
pub fn in_map(message: &[u8], field: u64, key: &str) -> Option<String> {
    fields(message).find_map(|(number, value)| match value {
        Value::Bytes(entry) if number == field && text_in(entry, 1).as_deref() == Some(key) => text_in(entry, 2),
        _ => None,
    })
}

/// All fields up to the first that cannot be read.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        let tag = take_varint(&mut rest)?;
        let value = match tag & 7 {
            VARINT => Value::Number(take_varint(&mut rest)?),
            LENGTH_DELIMITED => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                let (bytes, after) = rest.split_at_checked(length)?;
                rest = after;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    })
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let inner = Message::new().text(1, "a").number(3, 300);
        let message = Message::new().message(2, &inner).map(7, &[("k", "v"), ("l", "w")]).texts(4, &["x", "y"]);
        let bytes = message.bytes();
        let read = bytes_in(bytes, 2).unwrap();
        assert_eq!((text_in(read, 1), number_in(read, 3), number_in(read, 9)), (Some("a".into()), 300, 0));
        assert_eq!((in_map(bytes, 7, "l"), in_map(bytes, 7, "m")), (Some("w".into()), None));
        // The example of the page: field 1 with 150.
        assert_eq!(Message::new().number(1, 150).bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(bytes_in(&bytes[..3], 2), None, "cut off");
    }
}
