//! Kubelets before 1.26 name the path of the plugin's socket as the authority of a call. That is none (RFC 9113, 8.3.1), and the
//! HTTP/2 of this plugin would end the connection. So the word is replaced on its way in.
//!
//! A header block (RFC 7541) is walked, not decoded: only lengths matter for where a field begins. What is put in is no longer than
//! what it replaces, so that the table of the reader never forgets a field that the writer still refers to.

use tokio::io::{self, AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;

/// What stands in for it. Newer kubelets say the same.
const AUTHORITY: &[u8] = b"localhost";
/// The authority's place in the static table.
const AUTHORITY_INDEX: usize = 1;
/// What a client says first.
const PREFACE: usize = 24;
/// A frame's length, type, flags and stream.
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// What is on its way in one direction.
const BUFFER: usize = 64 << 10;

/// The same connection, with authorities that are some. It ends when either side does.
pub fn with_authority(kubelet: UnixStream) -> DuplexStream {
    let (ours, theirs) = io::duplex(BUFFER);
    tokio::spawn(async move {
        let (mut from_kubelet, mut to_kubelet) = kubelet.into_split();
        let (mut from_plugin, mut to_plugin) = io::split(theirs);
        // Whichever ends first: dropping the other end tells the rest.
        tokio::select! {
            _ = pass_on(&mut from_kubelet, &mut to_plugin) => {}
            _ = io::copy(&mut from_plugin, &mut to_kubelet) => {}
        }
    });
    ours
}

async fn pass_on(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin)) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let mut head = [0; FRAME_HEAD];
        from.read_exact(&mut head).await?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        // A block that goes on in another frame may be cut anywhere; no kubelet sends so long a one.
        if head[3] == HEADERS && head[4] & END_HEADERS != 0 {
            // What is no block the reader refuses in its own words.
            payload = replaced(head[4], &payload).unwrap_or(payload);
            head[..3].copy_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
        to.flush().await?;
    }
}

/// The payload of a frame of headers, with another authority; none if it is no such.
fn replaced(flags: u8, payload: &[u8]) -> Option<Vec<u8>> {
    let padding = if flags & PADDED != 0 { 1 + usize::from(*payload.first()?) } else { 0 };
    let before = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().checked_sub(padding.saturating_sub(1))?;
    let block = payload.get(before..end)?;
    Some([&payload[..before], &with_other_authority(block)?, &payload[end..]].concat())
}

fn with_other_authority(block: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut written) = (block, Vec::with_capacity(block.len()));
    while let Some(&first) = rest.first() {
        let field = rest;
        // The first bits say what it is, and how many are left for a number.
        let bits = match first {
            0x80.. => 7,
            0x40..=0x7f => 6,
            0x20..=0x3f => 5,
            _ => 4,
        };
        let index = number(&mut rest, bits)?;
        // A field of the table, or a new size of it.
        if bits == 7 || bits == 5 {
            written.extend_from_slice(&field[..field.len() - rest.len()]);
            continue;
        }
        if index == 0 {
            pass_by(&mut rest)?;
        }
        let name = &field[..field.len() - rest.len()];
        let value = pass_by(&mut rest)?;
        written.extend_from_slice(name);
        // A path is longer; what is not may well be an authority.
        if index == AUTHORITY_INDEX && value.len() > AUTHORITY.len() + 1 {
            written.push(AUTHORITY.len() as u8);
            written.extend_from_slice(AUTHORITY);
        } else {
            written.extend_from_slice(value);
        }
    }
    Some(written)
}

/// A number that begins in the last `bits` of a byte (RFC 7541, 5.1).
fn number(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let full = (1 << bits) - 1;
    let (first, mut left) = rest.split_first()?;
    let mut value = usize::from(*first) & full;
    if value == full {
        let mut shift = 0;
        loop {
            let (byte, after) = left.split_first()?;
            left = after;
            value += (usize::from(*byte) & 0x7f).checked_shl(shift).filter(|_| shift < 28)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = left;
    Some(value)
}

/// Passes by a string (RFC 7541, 5.2); gives it with its length.
fn pass_by<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let whole = *rest;
    let length = number(rest, 7)?;
    *rest = rest.get(length..)?;
    Some(&whole[..whole.len() - rest.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `:method POST`, `:scheme http`, a path, and an authority, as a field with a name of the table.
    fn block(authority: &[u8]) -> Vec<u8> {
        let path = [&[0x44, 5][..], b"/a.b/"].concat();
        let authority = [&[0x41, authority.len() as u8][..], authority].concat();
        // A table's new size; at the end a field with a name of its own that is entered nowhere.
        [&[0x3f, 0xe1, 0x1f, 0x83, 0x86][..], &path, &authority, &[0x00, 2], b"te", &[8], b"trailers"].concat()
    }

    #[test]
    fn a_path_as_authority_is_replaced_and_nothing_else() {
        let path = b"/var/lib/kubelet/device-plugins/gpool-percent.sock";
        assert_eq!(with_other_authority(&block(path)).unwrap(), block(b"localhost"));
        assert_eq!(with_other_authority(&block(b"localhost")).unwrap(), block(b"localhost"));
        // The second call of a connection names the whole field by its place in the table.
        let again = [0x83, 0x86, 0xbf, 0xbe];
        assert_eq!(with_other_authority(&again).unwrap(), again);
        // Huffman's code is as long as it says, and needs no reading.
        let coded = [&[0x41, 0x8a][..], &[0xff, 0x41, 0x00, 0x3f, 1, 2, 3, 4, 5, 6], &[0x82]].concat();
        assert_eq!(with_other_authority(&coded).unwrap(), [&[0x41, 9][..], b"localhost", &[0x82]].concat());
        let short = [&[0x41, 0x84][..], &[0xff, 0x41, 0x00, 0x3f], &[0x82]].concat();
        assert_eq!(with_other_authority(&short).unwrap(), short, "nothing is put in that is longer");
        let long = [b'x'; 300];
        let lengthy = [&[0x41, 0x7f, 0xad, 0x01][..], &long].concat();
        assert_eq!(with_other_authority(&lengthy).unwrap(), [&[0x41, 9][..], b"localhost"].concat());
    }

    #[test]
    fn padding_and_priority_stay_where_they_are() {
        let path = b"/var/lib/kubelet/device-plugins/gpool-percent.sock";
        let framed = |block: &[u8]| [&[2][..], &[0, 0, 0, 0, 16], block, &[0, 0]].concat();
        let flags = PADDED | PRIORITY | END_HEADERS;
        assert_eq!(replaced(flags, &framed(&block(path))).unwrap(), framed(&block(b"localhost")));
        assert_eq!(replaced(END_HEADERS, &block(path)).unwrap(), block(b"localhost"));
    }

    #[test]
    fn what_is_no_block_is_left_to_the_reader() {
        for wrong in [&[0x41][..], &[0x41, 9, b'x'], &[0x7f], &[0x40, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x3f]] {
            assert_eq!(with_other_authority(wrong), None, "{wrong:?}");
        }
        assert_eq!(replaced(PADDED, &[9, 1]), None);
        assert_eq!(replaced(PRIORITY, &[0, 0]), None);
        assert_eq!(replaced(PADDED, &[]), None);
        assert_eq!(with_other_authority(&[]), Some(vec![]));
    }
}
