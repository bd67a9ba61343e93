//! The pages of the manual that `gpool doctor explain` prints, as they were when the program was built.

use super::names;

const ERRORS: &str = include_str!("../../../docs/errors.md");
const CHECKS: &str = include_str!("../../../docs/reference/doctor.md");

/// The page of an error code (`GPOOL-E201`, `e201`) or of a check (`15`, `socket`); none if there is no such thing.
pub fn page(of: &str) -> Option<String> {
    let wanted = of.trim().to_ascii_uppercase();
    let check = match wanted.parse::<usize>() {
        Ok(number) => names().nth(number.checked_sub(1)?).map(|name| (number, name)),
        Err(_) => (1..).zip(names()).find(|(_, name)| name.eq_ignore_ascii_case(of.trim())),
    };
    if let Some((number, name)) = check {
        return section(CHECKS, &format!("## {number} {name}"));
    }
    let code = if wanted.starts_with("GPOOL-") { wanted } else { format!("GPOOL-{wanted}") };
    section(ERRORS, &format!("## {code}"))
}

/// From this heading up to the next one, both `#` and links written plainly.
fn section(page: &str, heading: &str) -> Option<String> {
    let mut lines = page.lines().skip_while(|line| *line != heading);
    let title = lines.next()?.trim_start_matches('#').trim();
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(format!("{title}\n\n{}\n", plain(body.join("\n").trim())))
}

/// `[words](place)` as `words`: on a terminal a link leads nowhere. What is in code stays, `[table] key` above all.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['[', '`']) {
        out += &rest[..at];
        rest = &rest[at..];
        let code = code(rest).map(|code| (code, code.len()));
        let (shown, length) = code.or_else(|| link(rest)).unwrap_or((&rest[..1], 1));
        out += shown;
        rest = &rest[length..];
    }
    out + rest
}

/// The code that `text` begins with, a span or a block, with its marks.
fn code(text: &str) -> Option<&str> {
    let mark = if text.starts_with("```") { "```" } else { "`" };
    let end = text.strip_prefix(mark)?.find(mark)?;
    Some(&text[..end + 2 * mark.len()])
}

/// The words of the link that `text` begins with, and the length of all of it.
fn link(text: &str) -> Option<(&str, usize)> {
    text.strip_prefix('[')?;
    let mut at = 1;
    loop {
        at += text[at..].find(['[', ']', '`'])?;
        match &text[at..] {
            rest if rest.starts_with('`') => at += code(rest)?.len(),
            rest if rest.starts_with("](") => return Some((&text[1..at], at + rest.find(')')? + 1)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_checks_have_their_pages() {
        for of in ["GPOOL-E201", "gpool-e201", "E201"] {
            let text = page(of).unwrap();
            assert!(text.starts_with("GPOOL-E201\n") && !text.contains("GPOOL-E202"), "{text}");
        }
        for (number, name) in (1..).zip(names()) {
            let text =
                page(&number.to_string()).unwrap_or_else(|| panic!("docs/reference/doctor.md lacks {number} {name}"));
            assert!(text.starts_with(&format!("{number} {name}\n")), "{text}");
            assert_eq!(page(name), Some(text));
        }
        for of in ["", "0", "99", "E999", "GPOOL-", "nonsense"] {
            assert_eq!(page(of), None, "{of}");
        }
    }

    #[test]
    fn links_are_written_plainly() {
        assert_eq!(plain("see [engines](a.md#b) and `[socket] group`, [x]"), "see engines and `[socket] group`, [x]");
        assert_eq!(plain("`[a] b` of [it `[c]`](x.md), `[d`"), "`[a] b` of it `[c]`, `[d`");
    }

    #[test]
    fn no_page_loses_anything_but_links() {
        // Every second part is code, since a block has its marks in threes.
        let parts = |text: &str, which| text.split('`').skip(which).step_by(2).map(String::from).collect::<Vec<_>>();
        for heading in [ERRORS, CHECKS].iter().flat_map(|page| page.lines()).filter(|line| line.starts_with("## ")) {
            let page = if heading.starts_with("## GPOOL-") { ERRORS } else { CHECKS };
            let source =
                page.split(&format!("{heading}\n")).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
            let shown = section(page, heading).unwrap();
            assert_eq!(parts(&shown, 1), parts(source, 1), "{heading}");
            let told = parts(&shown, 0).concat();
            assert!(!told.contains("](") && told.matches('[').count() == told.matches(']').count(), "{shown}");
        }
        let share = page("E201").unwrap();
        assert!(share.contains("an ended container's share is held for `[lease] hold_ms` (10 s) for a"), "{share}");
        assert!(
            share.contains(
                "- `has that of [default_request]`: the container names no share, and the host's is not free"
            )
        );
        let spill =
            "30 spill\n\nWhat `[spill] memory` lets containers have of the host's memory is at most 80 % of it.";
        assert!(page("30").unwrap().starts_with(spill), "{:?}", page("30"));
    }
}
