//! A tar archive of plain files in memory (POSIX ustar, IEEE 1003.1 pax interchange, section "ustar Interchange Format").

const BLOCK: usize = 512;
const NAME_LIMIT: usize = 100;

/// Packs `files`, names and contents, with mode 0600 and the given time in seconds since 1970.
///
/// # Panics
/// If a name has more than 100 bytes: names are the caller's own.
pub fn pack(files: &[(String, Vec<u8>)], time_s: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        archive.extend(header(name, content.len(), time_s));
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks are the end.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(name: &str, size: usize, time_s: u64) -> [u8; BLOCK] {
    assert!(name.len() <= NAME_LIMIT, "{name} is too long for a name in the archive");
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, &format!("{time_s:011o}\0"));
    // The sum is taken with its own field as spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn tar_reads_what_is_packed() {
        let files = [("gpool/a.txt".to_owned(), b"first\n".to_vec()), ("gpool/b.json".to_owned(), vec![b'x'; 1300])];
        let archive = pack(&files, 1_700_000_000);
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("tar");
        command.args(["-x", "-f", "-", "-C"]).arg(directory.path()).stdin(Stdio::piped());
        let mut tar = command.spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&archive).unwrap();
        assert!(tar.wait().unwrap().success());
        for (name, content) in files {
            assert_eq!(std::fs::read(directory.path().join(&name)).unwrap(), content, "{name}");
        }
    }
}
