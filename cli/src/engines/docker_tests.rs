use super::*;
use proptest::prelude::*;

fn wanted(is_default: bool) -> Entry {
    Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default }
}

#[test]
fn a_new_file_says_what_was_asked_for() {
    let text = with_entry(None, &wanted(false)).unwrap();
    assert_eq!(
        text,
        "{\n  \"runtimes\": {\n    \"gpool\": {\n      \"path\": \"/usr/bin/gpool-runtime\"\n    }\n  }\n}\n"
    );
    assert_eq!(entry(&text).unwrap(), Some(wanted(false)));
}

#[test]
fn everything_else_stays_byte_for_byte() {
    let before = "{\n\t\"log-opts\": { \"max-size\":\"10m\" },\n\t\"runtimes\": {\n\t\t\"nvidia\": { \"path\": \"/usr/bin/nvidia-container-runtime\", \"runtimeArgs\": [] }\n\t},\n\t\"big\": 18446744073709551616\n}";
    let after = with_entry(Some(before), &wanted(false)).unwrap();
    let entry = ",\n\t\t\"gpool\": {\n\t\t\t\"path\": \"/usr/bin/gpool-runtime\"\n\t\t}";
    assert_eq!(after.replace(entry, ""), before);
    assert_eq!(with_entry(Some(&after), &wanted(false)).unwrap(), after, "a second time changes nothing");
    assert_eq!(without_entry(&after, None).unwrap(), before);
}

#[test]
fn the_default_runtime_comes_and_goes() {
    let before =
        "{\n  \"default-runtime\": \"nvidia\",\n  \"runtimes\": {\n    \"nvidia\": {\"path\": \"/usr/bin/n\"}\n  }\n}";
    let after = with_entry(Some(before), &wanted(true)).unwrap();
    assert_eq!(entry(&after).unwrap(), Some(wanted(true)));
    assert_eq!(without_entry(&after, Some(before)).unwrap(), before);
    let forgotten = without_entry(&after, None).unwrap();
    assert!(!forgotten.contains("default-runtime"), "{forgotten}");
    // Configured again without the flag, gpool is no default any more, and a stranger's choice is left alone.
    let plain = with_entry(Some(&with_entry(None, &wanted(true)).unwrap()), &wanted(false)).unwrap();
    assert_eq!(entry(&plain).unwrap(), Some(wanted(false)));
    assert!(with_entry(Some(before), &wanted(false)).unwrap().contains(r#""default-runtime": "nvidia""#));
}

#[test]
fn what_docker_cannot_read_is_refused_with_the_place() {
    for (text, what) in [
        ("{\"a\": 1,}", "line 1"),
        ("{\n // why\n}", "line 2"),
        ("[]", "no JSON object"),
        (r#"{"runtimes": 3}"#, "runtimes is no object"),
        (r#"{"runtimes": {"gpool": {"path": "/x", "runtimeArgs": ["--debug"]}}}"#, "take runtimeArgs out"),
        (r#"{"runtimes": {"gpool": {}}}"#, "has no path"),
    ] {
        let refusal = with_entry(Some(text), &wanted(false)).unwrap_err();
        assert!(refusal.0.contains(what), "{text}: {refusal}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z\"\\\\]{1,8}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect()))
        ]
    })
}

proptest! {
    #[test]
    fn whatever_the_file_holds_only_the_entry_differs(
        mut members in prop::collection::vec(("[a-z-]{1,10}", any_json()), 0..5),
        others in prop::option::of(prop::collection::vec("[a-f]{1,5}", 0..3)),
        is_pretty: bool,
        is_default: bool,
    ) {
        members.retain(|(name, _)| name != RUNTIMES && name != DEFAULT);
        let mut document: Map<String, Value> = members.into_iter().collect();
        if let Some(others) = others {
            let others = others.into_iter().map(|name| (name, serde_json::json!({"path": "/usr/bin/x"}))).collect();
            document.insert(RUNTIMES.into(), Value::Object(others));
        }
        let document = Value::Object(document);
        let before = if is_pretty { format!("{document:#}\n") } else { document.to_string() };
        let after = with_entry(Some(&before), &wanted(is_default)).unwrap();
        prop_assert_eq!(entry(&after).unwrap(), Some(wanted(is_default)));
        prop_assert_eq!(with_entry(Some(&after), &wanted(is_default)).unwrap(), after.clone());
        let undone: Value = serde_json::from_str(&without_entry(&after, Some(&before)).unwrap()).unwrap();
        let mut expected = document;
        if expected[RUNTIMES].as_object().is_some_and(Map::is_empty) {
            expected.as_object_mut().unwrap().shift_remove(RUNTIMES);
        }
        prop_assert_eq!(undone, expected);
    }
}

#[test]
fn the_classic_builder_is_known_by_the_file_or_the_version() {
    let (on, off) = (r#"{"features": {"buildkit": true}}"#, r#"{"features": {"buildkit": false}}"#);
    for (text, version, is_classic) in [
        ("{}", Some(20), true),
        ("{}", Some(23), false),
        ("{}", None, false),
        (on, Some(20), false),
        (off, Some(28), true),
        (off, None, true),
        ("", Some(20), true),
    ] {
        assert_eq!(builds_with_runtime(text, version), is_classic, "{text} {version:?}");
    }
}
