//! `gpool audit verify`

use super::{TRIES, directory, failed, files, lines};
use crate::arguments::{Format, VerifyOptions};
use crate::exit::Failure;
use crate::output;
use gpool_policy::chain::{Link, follows, opened};
use gpool_protocol::{AUDIT_FORM, Beginning, Numbered};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// So many places that are not as they were written are told one by one.
const BREAKS_SHOWN: usize = 20;

/// What was read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    files: u64,
    events: u64,
    /// Number and time of the first event.
    first: Option<(u64, u64)>,
    /// Number, time and link of the last.
    last: Option<(u64, u64, Link)>,
    /// Whether the last line is being written, or was when the power went.
    is_open: bool,
    /// What is not as it was written, by file and line.
    breaks: Vec<String>,
    /// Which of the known numbers were compared.
    compared: BTreeSet<u64>,
}

/// Checks it and says what it ends with.
pub fn run(options: &VerifyOptions) -> Result<(), Failure> {
    let directory = directory(&options.place)?;
    let found = read_all(&directory, &options.known)?;
    match options.format {
        Format::Table | Format::Wide => output::print(&render(&found, &directory))?,
        Format::Json => output::print_json_of([("audit", to_json(&found))])?,
        Format::Csv => {
            let header = ["files", "events", "first_number", "last_number", "chain", "breaks"];
            output::print(&output::csv(&header, [cells(&found)]))?;
        }
    }
    judge(&found, &options.known)
}

/// Files that are taken out while they are read, because they are old, are looked for anew.
fn read_all(directory: &Path, known: &[(u64, Link)]) -> Result<Found, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        let files = files(directory)?;
        match read(&files, known) {
            Err(_) if tries < TRIES && files.iter().any(|(_, path)| !path.exists()) => {}
            outcome => return outcome,
        }
    }
}

/// Reads all files in order, behind what is broken too. What is known is compared as it comes by.
fn read(files: &[(u64, PathBuf)], known: &[(u64, Link)]) -> Result<Found, Failure> {
    let mut found = Found::default();
    // The number and the link that the next line follows; before the first file that is there nothing is known.
    let mut at: Option<(u64, Link)> = None;
    for (place, (first, path)) in files.iter().enumerate() {
        let (lines, has_more) = lines(path)?;
        found.files += 1;
        let Some(begun) = lines.first().and_then(|line| beginning(line)) else {
            found.note(path, 0, "the file does not begin as the audit's do");
            continue;
        };
        let (begins, previous) = begun;
        match at {
            Some((number, _)) if number + 1 != begins => {
                let before = begins.saturating_sub(1);
                found.note(
                    path,
                    0,
                    &format!("the file before it ends with number {number}, and this one follows number {before}"),
                );
            }
            Some((_, link)) if link != previous => found.note(path, 0, "it does not follow the file before it"),
            None if begins == 1 && previous != Link::FIRST => {
                found.note(path, 0, "the first file of all follows another")
            }
            _ => {}
        }
        if begins != *first {
            found.note(path, 0, "the file has another one's name");
        }
        found.compare(path, 0, (begins.saturating_sub(1), previous), known);
        let (mut number, mut link) = (begins.saturating_sub(1), previous);
        for (line, bytes) in lines.iter().enumerate() {
            let text = std::str::from_utf8(bytes).ok();
            let Some((object, its)) = text.and_then(opened) else {
                found.note(path, line, "this is no line of the audit");
                continue;
            };
            if text.and_then(|text| follows(link, text)).is_none() {
                found.note(path, line, "this line or what was before it was changed, taken out or put in");
            }
            link = its;
            if line == 0 {
                continue;
            }
            let Ok(event) = serde_json::from_str::<Numbered>(&object) else {
                found.note(path, line, "this is no event");
                continue;
            };
            if event.sequence != number + 1 {
                found.note(path, line, &format!("number {} follows number {number}", event.sequence));
            }
            number = event.sequence;
            found.events += 1;
            found.first.get_or_insert((number, event.unix_ms));
            found.last = Some((number, event.unix_ms, link));
            found.compare(path, line, (number, link), known);
        }
        let is_last = place + 1 == files.len();
        if has_more && !is_last {
            found.note(path, lines.len(), "the line is not whole, and files follow");
        }
        found.is_open = has_more;
        at = Some((number, link));
    }
    Ok(found)
}

impl Found {
    fn note(&mut self, path: &Path, line: usize, what: &str) {
        self.breaks.push(format!("{}, line {}: {what}", path.display(), line + 1));
    }

    fn compare(&mut self, path: &Path, line: usize, (number, link): (u64, Link), known: &[(u64, Link)]) {
        for (_, other) in known.iter().filter(|(known, _)| *known == number) {
            self.compared.insert(number);
            if *other != link {
                self.note(
                    path,
                    line,
                    &format!("number {number} has another chain than {other}: the audit was written anew"),
                );
            }
        }
    }
}

/// The number that a file begins with, and the link before it.
fn beginning(line: &[u8]) -> Option<(u64, Link)> {
    let (object, _) = opened(std::str::from_utf8(line).ok()?)?;
    let begun: Beginning = serde_json::from_str(&object).ok()?;
    Some((begun.begins, Link::parse(&begun.previous).filter(|_| begun.audit == AUDIT_FORM)?))
}

/// Whether anything is wrong: what was found to be, or that what is known is not there.
fn judge(found: &Found, known: &[(u64, Link)]) -> Result<(), Failure> {
    let last = found.last.map_or(0, |(number, ..)| number);
    let missing: Vec<u64> = known.iter().map(|(number, _)| *number).filter(|it| !found.compared.contains(it)).collect();
    if let Some(number) = missing.iter().find(|number| **number > last) {
        return Err(failed(&format!(
            "the audit ends with number {last}, and number {number} is known: its end was taken out; look for copies of it"
        )));
    }
    if !found.breaks.is_empty() {
        let shown: Vec<&str> = found.breaks.iter().take(BREAKS_SHOWN).map(String::as_str).collect();
        let more = match found.breaks.len().saturating_sub(BREAKS_SHOWN) {
            0 => String::new(),
            more => format!("\ngpool: and {more} more places"),
        };
        let text = shown.join("\ngpool: ");
        return Err(failed(&format!(
            "{text}{more}\ngpool: what stands there is not what was written; the journal has events too"
        )));
    }
    // Those that are older than what is kept prove nothing any more.
    match missing.as_slice() {
        [] => Ok(()),
        all if all.len() == known.len() => Err(failed(&format!(
            "number {} is no longer there, so that nothing that is known could be compared; give one that is newer",
            all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        ))),
        some => {
            some.iter().for_each(|number| eprintln!("gpool: number {number} is no longer there and was not compared"));
            Ok(())
        }
    }
}

fn moment(unix_ms: u64) -> String {
    crate::commands::usage::moment(unix_ms / 1000)
}

fn render(found: &Found, directory: &Path) -> String {
    let (Some((first, from)), Some((last, until, link))) = (found.first, found.last) else {
        return format!("{} has no event yet.\n", directory.display());
    };
    let of = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let verdict = match found.breaks.len() {
        0 => "none was changed, taken out or put in",
        _ => "not all are as they were written",
    };
    let open = if found.is_open { " Its last line is being written." } else { "" };
    format!(
        "{} in {}, numbers {first} to {last}, from {} to {}: {verdict}.{open}\nIt ends with {last}:{link}\n",
        of(found.events, "event"),
        of(found.files, "file"),
        moment(from),
        moment(until),
    )
}

fn to_json(found: &Found) -> Value {
    json!({
        "files": found.files,
        "events": found.events,
        "first_number": found.first.map(|(number, _)| number),
        "first_unix_ms": found.first.map(|(_, unix_ms)| unix_ms),
        "last_number": found.last.map(|(number, ..)| number),
        "last_unix_ms": found.last.map(|(_, unix_ms, _)| unix_ms),
        "chain": found.last.map(|(.., link)| link.to_string()),
        "breaks": found.breaks,
    })
}

fn cells(found: &Found) -> Vec<String> {
    let or_none = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    vec![
        found.files.to_string(),
        found.events.to_string(),
        or_none(found.first.map(|(number, _)| number)),
        or_none(found.last.map(|(number, ..)| number)),
        found.last.map(|(.., link)| link.to_string()).unwrap_or_default(),
        found.breaks.len().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::chain::{file_name, sealed};
    use std::fs;

    /// Writes two files with three events each.
    fn written(directory: &Path) -> Vec<Link> {
        let (mut link, mut links) = (Link::FIRST, Vec::new());
        for first in [1, 4] {
            let mut text = String::new();
            let mut add = |object: String| {
                let (line, its) = sealed(link, &object);
                text += &(line + "\n");
                link = its;
                its
            };
            add(format!(
                r#"{{"audit":1,"begins":{first},"unix_ms":5,"previous":"{}"}}"#,
                links.last().unwrap_or(&Link::FIRST)
            ));
            for number in first..first + 3 {
                links.push(add(format!(
                    r#"{{"sequence":{number},"unix_ms":1700000000000,"kind":"lease-granted","message":"m"}}"#
                )));
            }
            fs::write(directory.join(file_name(first)), text).unwrap();
        }
        links
    }

    fn outcome(directory: &Path, known: &[(u64, Link)]) -> Result<Found, String> {
        let refused = |failure| match failure {
            Failure::Refused(_, sentence) => sentence,
            other => panic!("{other:?}"),
        };
        let found = read_all(directory, known).map_err(refused)?;
        judge(&found, known).map_err(refused).map(|()| found)
    }

    #[test]
    fn a_whole_trail_is_told_with_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let links = written(folder.path());
        let whole = outcome(folder.path(), &[(2, links[1]), (6, links[5])]).unwrap();
        assert_eq!((whole.files, whole.events, whole.first.unwrap().0, whole.last.unwrap().0), (2, 6, 1, 6));
        let told = render(&whole, folder.path());
        assert!(told.ends_with(&format!("It ends with 6:{}\n", links[5])), "{told}");
        // The oldest file may be gone, and the last line be under way.
        fs::remove_file(folder.path().join(file_name(1))).unwrap();
        let path = folder.path().join(file_name(4));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "{\"seq").unwrap();
        let whole = outcome(folder.path(), &[(2, links[1]), (3, links[2])]).unwrap();
        assert!(whole.is_open && whole.first.unwrap().0 == 4);
        assert_eq!(whole.compared, BTreeSet::from([3]), "what a file begins behind is known of it");
        assert!(outcome(folder.path(), &[(2, links[1])]).unwrap_err().contains("number 2 is no longer there"));
        assert_eq!(outcome(&folder.path().join(".."), &[]).unwrap().last, None);
    }

    #[test]
    fn what_is_changed_taken_out_or_written_anew_is_told_with_its_line() {
        type Known<'a> = &'a dyn Fn(&[Link]) -> Vec<(u64, Link)>;
        let attempt = |change: &dyn Fn(&Path), known: Known<'_>| {
            let folder = tempfile::tempdir().unwrap();
            let links = written(folder.path());
            change(folder.path());
            outcome(folder.path(), &known(&links)).unwrap_err()
        };
        fn edit(first: u64, with: impl Fn(Vec<&str>) -> Vec<String>) -> impl Fn(&Path) {
            move |directory: &Path| {
                let path = directory.join(file_name(first));
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, with(text.lines().collect()).join("\n") + "\n").unwrap();
            }
        }
        fn texts(lines: Vec<&str>) -> Vec<String> {
            lines.into_iter().map(str::to_owned).collect()
        }
        let nothing = |_: &[Link]| Vec::new();
        let changed =
            edit(1, |lines| lines.iter().map(|line| line.replace("\"sequence\":2", "\"sequence\":3")).collect());
        assert!(attempt(&changed, &nothing).contains("line 3: this line or what was before it"));
        let taken = edit(4, |mut lines| {
            lines.remove(1);
            texts(lines)
        });
        assert!(attempt(&taken, &nothing).contains("line 2: this line"));
        let end = edit(1, |mut lines| {
            lines.pop();
            texts(lines)
        });
        assert!(attempt(&end, &nothing).contains("ends with number 2, and this one follows number 3"));
        let gone = |directory: &Path| fs::remove_file(directory.join(file_name(4))).unwrap();
        assert!(attempt(&gone, &|links| vec![(5, links[4])]).contains("ends with number 3, and number 5 is known"));
        assert!(attempt(&|_| (), &|links| vec![(5, links[3])]).contains("line 3: number 5 has another chain"));
        let renamed =
            |directory: &Path| fs::rename(directory.join(file_name(4)), directory.join(file_name(5))).unwrap();
        assert!(attempt(&renamed, &nothing).contains("another one's name"));
        let empty = |directory: &Path| fs::write(directory.join(file_name(4)), "").unwrap();
        assert!(attempt(&empty, &nothing).contains("does not begin as the audit's do"));
        // Who writes it anew from a later number on does not know what was before.
        let anew = |directory: &Path| {
            [1, 4].iter().for_each(|first| fs::remove_file(directory.join(file_name(*first))).unwrap());
            let begun = format!(r#"{{"audit":1,"begins":7,"unix_ms":5,"previous":"{}"}}"#, Link::FIRST);
            let (begun, link) = sealed(Link::FIRST, &begun);
            let (event, _) = sealed(link, r#"{"sequence":7,"unix_ms":1,"kind":"lease-granted","message":"m"}"#);
            fs::write(directory.join(file_name(7)), format!("{begun}\n{event}\n")).unwrap();
        };
        assert!(attempt(&anew, &|links| vec![(6, links[5])]).contains("number 6 has another chain"));
        assert!(attempt(&anew, &|links| vec![(3, links[2])]).contains("nothing that is known could be compared"));
        let returns = edit(1, |lines| lines.iter().map(|line| format!("{line}\r")).collect());
        assert!(attempt(&returns, &nothing).contains("line 1"), "what is added is not overlooked");
        let blank = edit(1, |lines| lines.iter().flat_map(|line| [(*line).to_owned(), String::new()]).collect());
        assert!(attempt(&blank, &nothing).contains("line 2: this is no line of the audit"));
        // What is behind a break is checked, too.
        let twice = |directory: &Path| {
            [1, 4].iter().for_each(|first| {
                let path = directory.join(file_name(*first));
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, text.replacen("\"message\":\"m\"", "\"message\":\"x\"", 1)).unwrap();
            })
        };
        assert_eq!(attempt(&twice, &nothing).matches("line 2: this line or what was before it").count(), 2);
    }
}
