//! What must not leave a host in a support archive: its name, names of people, and whatever looks like a credential.

/// Words that say that a secret follows, in lower case.
const SECRETS: [&str; 9] =
    ["password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential", "private_key"];
/// How well-known services begin their tokens.
const TOKEN_STARTS: [&str; 7] = ["ghp_", "gho_", "github_pat_", "glpat-", "hf_", "AKIA", "eyJ"];
/// Names that say nothing of a host, and occur in other meanings.
const COMMON: [&str; 3] = ["localhost", "debian", "ubuntu"];

/// Takes out what must not leave.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    /// Names of this host, the longest first.
    names: Vec<String>,
}

impl Redactor {
    /// For a host with these names; of a name with dots the first part counts, too.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<String> = Vec::new();
        for name in names {
            let name = name.trim().to_ascii_lowercase();
            all.extend(name.split('.').next().map(str::to_owned));
            all.push(name);
        }
        all.retain(|name| name.len() >= 3 && !COMMON.contains(&name.as_str()));
        all.sort_by_key(|name| std::cmp::Reverse(name.len()));
        all.dedup();
        Self { names: all }
    }

    /// `text` without them, line by line.
    pub fn redact(&self, text: &str) -> String {
        text.split_inclusive('\n').map(|line| self.line(line)).collect()
    }

    fn line(&self, line: &str) -> String {
        let mut line = without_credentials(line);
        line = without_homes(&line);
        for name in &self.names {
            line = replace_word(&line, name, "HOST");
        }
        line
    }
}

/// A word is what stands between spaces, quotes, commas and brackets.
fn is_boundary(c: char) -> bool {
    c.is_whitespace() || "\"',;()[]{}<>".contains(c)
}

fn without_credentials(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    // Set once a word has announced a secret: then the next word is it, over quotes and an equals sign.
    let mut announced = false;
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if is_boundary(first) {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(is_boundary).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let (safe, announces) = word_without_credentials(word, announced);
        out += &safe;
        announced = announces;
        rest = after;
    }
    out
}

/// The word as it may be shown, and whether the next one is a secret.
fn word_without_credentials(word: &str, announced: bool) -> (String, bool) {
    if word == "=" || word == ":" || word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic") {
        return (word.to_owned(), announced);
    }
    if announced || TOKEN_STARTS.iter().any(|start| word.len() > start.len() + 8 && word.starts_with(start)) {
        return ("REDACTED".into(), false);
    }
    let lower = word.to_ascii_lowercase();
    if let Some(at) = SECRETS.iter().filter_map(|name| Some(lower.find(name)? + name.len())).min() {
        return match word[at..].find(['=', ':']) {
            Some(sign) if at + sign + 1 < word.len() => (format!("{}REDACTED", &word[..at + sign + 1]), false),
            _ => (word.to_owned(), true),
        };
    }
    // https://user:password@place
    if let Some((scheme, place)) = word.split_once("://")
        && let Some((_, after)) = place.rsplit_once('@')
    {
        return (format!("{scheme}://REDACTED@{after}"), false);
    }
    (word.to_owned(), false)
}

fn without_homes(line: &str) -> String {
    const HOME: &str = "/home/";
    let mut parts = line.split(HOME);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c == '/' || is_boundary(c)).unwrap_or(part.len());
        out += HOME;
        out += "USER";
        out += &part[end..];
    }
    out
}

/// Every `name` in `line` that is no part of a longer word, in any case.
fn replace_word(line: &str, name: &str, by: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let (mut out, mut from) = (String::new(), 0);
    for (at, _) in lower.match_indices(name) {
        let before = at.checked_sub(1).and_then(|before| lower.as_bytes().get(before));
        if at < from || is_word(before) || is_word(lower.as_bytes().get(at + name.len())) {
            continue;
        }
        out += &line[from..at];
        out += by;
        from = at + name.len();
    }
    out + &line[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_every_usual_form_are_taken_out() {
        let redactor = Redactor::new(["Node-17.cluster.example".to_owned(), "localhost".to_owned()]);
        for (line, want) in [
            ("DB_PASSWORD=hunter2 next", "DB_PASSWORD=REDACTED next"),
            ("password = \"hunter2\"\n", "password = \"REDACTED\"\n"),
            ("{\"auth_token\":\"abcdef\",\"x\":1}", "{\"auth_token\":\"REDACTED\",\"x\":1}"),
            ("Authorization: Bearer abcdef", "Authorization: Bearer REDACTED"),
            ("mirror https://me:pw@registry.example/v2", "mirror https://REDACTED@registry.example/v2"),
            ("with hf_abcdefghijklmnop in it", "with REDACTED in it"),
            ("/home/anna/lib and /home/bert", "/home/USER/lib and /home/USER"),
            ("node-17: NODE-17.cluster.example said", "HOST: HOST said"),
            ("node-170 xnode-17 localhost", "node-170 xnode-17 localhost"),
            ("share 30 %, memory 4GiB", "share 30 %, memory 4GiB"),
        ] {
            assert_eq!(redactor.redact(line), want);
        }
    }

    #[test]
    fn no_text_breaks_it() {
        let redactor = Redactor::new(["knoten".to_owned()]);
        for line in ["", "\n\n", "token", "token=", "=", "ünïcode tokenß=ä", "://@", "/home/", "secret: \u{1F512}"]
        {
            redactor.redact(line);
        }
    }
}
