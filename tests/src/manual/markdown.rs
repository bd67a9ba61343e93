//! A page of Markdown, as far as its checks need it: fenced blocks, headings, links, code in the text.

use crate::failure::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The file.
    pub path: PathBuf,
    /// Its fenced blocks.
    pub blocks: Vec<Block>,
    /// Its headings, as they are written.
    pub headings: Vec<String>,
    /// The targets of its links, with their lines.
    pub links: Vec<(usize, String)>,
    /// Code within the text, with its line.
    pub code: Vec<(usize, String)>,
    /// Its whole text.
    pub text: String,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its first line of content, from 1.
    pub line: usize,
    /// What stands behind the opening fence, such as `sh run`.
    pub info: String,
    /// Its content.
    pub text: String,
}

impl Page {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).context(path.display())?;
        Ok(Self::parse(path, text))
    }

    /// Takes a text apart.
    #[must_use]
    pub fn parse(path: &Path, text: String) -> Self {
        let mut page = Page { path: path.to_owned(), ..Page::default() };
        let mut open: Option<Block> = None;
        // Code and links may go on in the next line of a paragraph.
        let mut paragraph = (1, String::new());
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                page.end_paragraph(&mut paragraph);
                match open.take() {
                    Some(block) => page.blocks.push(block),
                    None => open = Some(Block { line: number + 1, info: info.trim().into(), text: String::new() }),
                }
            } else if let Some(block) = &mut open {
                block.text += line;
                block.text.push('\n');
            } else {
                if line.trim().is_empty() || line.starts_with('|') || line.starts_with('#') {
                    page.end_paragraph(&mut paragraph);
                }
                if line.starts_with('#') {
                    page.headings.push(line.trim_start_matches('#').trim().into());
                }
                if paragraph.1.is_empty() {
                    paragraph.0 = number;
                }
                paragraph.1 += line;
                paragraph.1.push('\n');
            }
        }
        page.end_paragraph(&mut paragraph);
        page.text = text;
        page
    }

    /// The line in which an anchor of the page is wanted exists as a heading.
    #[must_use]
    pub fn has_anchor(&self, anchor: &str) -> bool {
        self.headings.iter().any(|heading| slug(heading) == anchor)
    }

    /// The path within the repository.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.strip_prefix(super::repository()).unwrap_or(&self.path).display().to_string()
    }

    fn end_paragraph(&mut self, (first, text): &mut (usize, String)) {
        let line_at = |at: usize| *first + text[..at].matches('\n').count();
        let mut prose = text.clone();
        let mut from = 0;
        while let Some(start) = text[from..].find('`').map(|at| from + at) {
            let Some(end) = text[start + 1..].find('`').map(|at| start + 1 + at) else { break };
            self.code.push((line_at(start), text[start + 1..end].replace('\n', " ")));
            // Links within code are none.
            prose.replace_range(start..=end, &text[start..=end].replace(['[', ']', '(', ')'], "x"));
            from = end + 1;
        }
        let mut from = 0;
        while let Some(middle) = prose[from..].find("](").map(|at| from + at) {
            let Some(end) = prose[middle..].find(')').map(|at| middle + at) else { break };
            self.links.push((line_at(middle), prose[middle + 2..end].to_owned()));
            from = end;
        }
        text.clear();
    }
}

/// The anchor of a heading, as GitHub and mdBook make it.
#[must_use]
pub fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_taken_apart() {
        let text = "# A `page`, with [x](y.md#z)\n\nSome `code over\ntwo lines` and [a](b.md).\n`[no](link)`\n\n```sh run\n\
                    # no heading\ngpool ps\n```\n| a | [c](d.md) |\n";
        let page = Page::parse(Path::new("p.md"), text.to_owned());
        assert_eq!(page.blocks, [Block { line: 8, info: "sh run".into(), text: "# no heading\ngpool ps\n".into() }]);
        assert_eq!(page.code[1], (3, "code over two lines".into()));
        let links: Vec<&str> = page.links.iter().map(|(_, link)| link.as_str()).collect();
        assert_eq!(links, ["y.md#z", "b.md", "d.md"]);
        assert_eq!(page.headings.len(), 1);
        assert_eq!(slug("`GET /v1/leases`, `GET /v1/leases/ID`"), "get-v1leases-get-v1leasesid");
        assert_eq!(slug("15 socket"), "15-socket");
    }
}
