//! What the program in a container printed: a heading for each question, then an answer a line.

use std::collections::BTreeMap;

/// Answers by heading, in the program's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers(BTreeMap<String, Vec<String>>);

impl Answers {
    /// Reads what was printed; a heading begins with `## `.
    pub fn read(printed: &str) -> Self {
        let mut answers = Self::default();
        let mut heading = String::new();
        for line in printed.lines() {
            match line.strip_prefix("## ") {
                Some(next) => heading = next.to_owned(),
                None => answers.0.entry(heading.clone()).or_default().push(line.to_owned()),
            }
        }
        answers
    }

    /// The headings, those of one kind only.
    pub fn headings<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(move |heading| heading.split(' ').next() == Some(kind))
    }

    /// The answers below a heading.
    pub fn below(&self, heading: &str) -> &[String] {
        self.0.get(heading).map_or(&[], Vec::as_slice)
    }

    /// Each answer's first word with the rest of the line.
    pub fn pairs<'a>(&'a self, heading: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.below(heading).iter().filter_map(|line| line.split_once(' '))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_below_their_heading() {
        let answers = Answers::read("## exports libcuda.so.1\ncuInit own\ncuNew behind\n## begin\ncuInit 100\n");
        assert_eq!(answers.headings("exports").collect::<Vec<_>>(), ["exports libcuda.so.1"]);
        let found: Vec<_> = answers.pairs("exports libcuda.so.1").collect();
        assert_eq!(found, [("cuInit", "own"), ("cuNew", "behind")]);
        assert_eq!(answers.below("begin"), ["cuInit 100"]);
        assert!(answers.below("runtime").is_empty());
    }
}
