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

/// `[words](place)` as `words`: on a terminal a link leads nowhere.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let link = rest[start..].find("](").map(|middle| start + middle);
        let end = link.and_then(|middle| rest[middle..].find(')').map(|end| middle + end));
        match (link, end) {
            (Some(middle), Some(end))
                if !rest[start + 1..middle].contains('\n') || !rest[start + 1..middle].contains('[') =>
            {
                out += &rest[..start];
                out += &rest[start + 1..middle];
                rest = &rest[end + 1..];
            }
            _ => {
                out += &rest[..=start];
                rest = &rest[start + 1..];
            }
        }
    }
    out + rest
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
    }
}
