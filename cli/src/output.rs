//! Writing data to stdout: JSON, CSV and borderless tables.

use crate::exit::Failure;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::Write;

/// Version of the JSON that commands print. Fields are added within a version, never changed.
pub const SCHEMA_VERSION: u32 = 1;

/// Prints `text` as it is.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Prints one JSON document: the schema's version and `value` under `name`.
pub fn print_json(name: &str, value: &impl Serialize) -> Result<(), Failure> {
    print_json_of([(name, to_value(value))])
}

/// The same with several parts.
pub fn print_json_of<const PARTS: usize>(parts: [(&str, Value); PARTS]) -> Result<(), Failure> {
    let mut document = Map::new();
    document.insert("schemaVersion".into(), SCHEMA_VERSION.into());
    document.extend(parts.map(|(name, value)| (name.to_owned(), value)));
    print(&format!("{:#}\n", Value::Object(document)))
}

/// `value` as JSON. Messages hold only maps with text keys and integers, so this cannot fail.
pub fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Lines of CSV (RFC 4180, but with plain newlines), the header first.
pub fn csv(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    header.join(",") + "\n" + &csv_rows(rows)
}

/// The same without a header, for what follows one that is printed already.
pub fn csv_rows(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = String::new();
    for row in rows {
        let fields: Vec<String> = row.iter().map(|field| csv_field(field)).collect();
        text += &(fields.join(",") + "\n");
    }
    text
}

fn csv_field(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// A column of a borderless table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its header.
    pub name: &'static str,
    /// Figures stand at the right, text at the left.
    pub is_figure: bool,
}

/// A text column.
pub const fn text(name: &'static str) -> Column {
    Column { name, is_figure: false }
}

/// A column of figures.
pub const fn figure(name: &'static str) -> Column {
    Column { name, is_figure: true }
}

/// Lays rows out as docker does: no borders, upper-case headers, two spaces between columns, one line a row.
pub fn borderless(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::TableStyle::default());
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.name));
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(drawn) = table.column_mut(index) {
            drawn.set_padding((0, 2));
            drawn.set_cell_alignment(if column.is_figure { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    let lines = table.to_string();
    lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_borders_and_no_trailing_space() {
        let rows = [vec!["a".into(), "1".into()], vec!["long name".into(), "1000".into()]];
        let drawn = borderless(&[text("NAME"), figure("N")], rows);
        assert_eq!(drawn, "NAME          N\na             1\nlong name  1000\n");
    }

    #[test]
    fn fields_with_separators_are_quoted() {
        assert_eq!(
            csv(&["a", "b"], [vec!["x,y".into(), "he said \"no\"".into()]]),
            "a,b\n\"x,y\",\"he said \"\"no\"\"\"\n"
        );
    }
}
