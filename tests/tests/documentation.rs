//! The manual: what it says of commands, keys, codes, routes and places is held against the code.

use gpool_configuration::{Configuration, catalogue, parse};
use gpool_protocol::{
    BindRequest, Class, ContainerId, CountedResource, Deadline, Edit, GpuUuid, HostPid, Isolation, LeaseGranted,
    LeaseId, LeaseRequest, LeaseUpdate, LeaseWaiting, Mechanism, MemoryCap, Mode, PodName, PodPlace, Priority, Request,
    RequestSource, Seal, Standing, WaitCause, WaitingView,
};
use gpool_tests::manual::markdown::{Page, slug};
use gpool_tests::manual::{self, command_lines, openapi, schema};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn pages() -> Vec<Page> {
    let pages = manual::pages().unwrap();
    assert!(pages.len() > 25, "only {} pages", pages.len());
    pages
}

/// Fails with all of them.
fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_command_line_is_one_that_the_programs_take() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for line in command_lines::in_blocks(&page) {
            checked += usize::from(line.words[0].starts_with("gpool"));
            if let Some(defect) = command_lines::defect(&line) {
                wrong.push(format!("{}:{}: {}: {defect}", page.name(), line.line, line.words.join(" ")));
            }
        }
        for (line, code) in &page.code {
            if let Some(defect) = command_lines::mention_defect(code) {
                wrong.push(format!("{}:{line}: {code}: {defect}", page.name()));
            }
        }
    }
    none(wrong);
    assert!(checked > 40, "only {checked} command lines were found");
}

#[test]
fn every_request_in_a_command_line_is_one_that_is_taken() {
    let mut checked = 0;
    for page in pages() {
        for line in command_lines::in_blocks(&page) {
            let is_asked = |word: &&String| word.starts_with("GPOOL_") || word.starts_with("gpool.io/");
            let (mut env, mut annotations) = (Vec::new(), BTreeMap::new());
            for word in line.words.iter().filter(is_asked).filter(|word| word.contains('=')) {
                match word.strip_prefix("gpool.io/").and_then(|rest| rest.split_once('=')) {
                    Some((key, value)) => drop(annotations.insert(format!("gpool.io/{key}"), value.to_owned())),
                    None => env.push(word.clone()),
                }
            }
            // Variables of other programs, as in `GPOOL_X=y program`, are none of a container.
            if line.words[0].starts_with("gpool") || (env.is_empty() && annotations.is_empty()) {
                continue;
            }
            let mut allowed = Configuration::default().policy.env.allow;
            // A page that shows a host's list may ask for what stands in it.
            allowed.extend(settings(&page).into_iter().flat_map(|its| its.policy.env.allow));
            let source = RequestSource {
                annotations: &annotations,
                env: &env,
                env_allow: &allowed,
                container_name: None,
                annotations_from_image: false,
                defaults: &[],
            };
            let read = Request::read(source);
            assert!(matches!(read, Ok(Some(_))), "{}:{}: {read:?}", page.name(), line.line);
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} requests were found");
}

/// The configuration knows them without the package whose they are.
#[test]
fn the_environment_can_be_allowed_every_key_and_nothing_else() {
    let keys: Vec<&str> = gpool_protocol::request_keys().collect();
    assert_eq!(gpool_configuration::REQUEST_KEYS[..], keys);
}

/// A block `toml` is a configuration of gpool; one of somebody else says whose: `toml containerd`.
#[test]
fn every_snippet_of_configuration_can_be_used() {
    let mut checked = 0;
    for page in pages() {
        for block in &page.blocks {
            let place = format!("{}:{}", page.name(), block.line);
            match block.info.as_str() {
                "toml" => {
                    parse(Path::new(&place), &block.text).unwrap_or_else(|error| panic!("{error}"));
                    checked += 1;
                }
                info if info.starts_with("toml ") => {
                    toml::from_str::<toml::Table>(&block.text).unwrap_or_else(|error| panic!("{place}: {error}"));
                }
                "json" => {
                    let read = serde_json::from_str::<serde_json::Value>(&block.text);
                    read.unwrap_or_else(|error| panic!("{place}: {error}"));
                }
                _ => {}
            }
        }
    }
    assert!(checked >= 3, "only {checked} snippets were found");
}

/// What the blocks `toml` of a page say, each by itself.
fn settings(page: &Page) -> Vec<Configuration> {
    let blocks = page.blocks.iter().filter(|block| block.info == "toml");
    blocks.map(|block| parse(Path::new(&page.name()), &block.text).unwrap()).collect()
}

/// A list takes the place of the default: who copies one to add to it loses nothing.
#[test]
fn lists_that_add_to_a_default_have_all_of_it() {
    let default = Configuration::default();
    let (allow, xids) = (&default.policy.env.allow, &default.health.drain_xids);
    let mut adding = 0;
    for its in pages().iter().flat_map(settings) {
        let adds = its.policy.env.allow.iter().any(|key| !allow.contains(key));
        assert!(!adds || allow.iter().all(|key| its.policy.env.allow.contains(key)), "{:?}", its.policy.env.allow);
        assert!(xids.iter().all(|xid| its.health.drain_xids.contains(xid)), "{:?}", its.health.drain_xids);
        adding += usize::from(adds);
    }
    assert!(adding >= 2, "only {adding} lists were found");
}

/// `[lease] hold_ms` in the text names a key that there is.
#[test]
fn every_key_that_is_mentioned_exists() {
    let known: BTreeSet<String> = catalogue().into_iter().map(|key| key.name).collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for (line, code) in &page.code {
            let Some((table, rest)) = code.strip_prefix('[').and_then(|rest| rest.split_once("] ")) else { continue };
            let key = rest.split([' ', '=']).next().unwrap_or_default();
            let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
            if !is_name(table) || key.is_empty() || !is_name(key) || key.contains('.') {
                continue;
            }
            let tables = known.iter().filter_map(|name| name.rsplit_once('.')).map(|(table, _)| table);
            let is_ours = tables.into_iter().any(|ours| ours == table) || table == "class.NAME";
            let name = format!("{table}.{key}").replace("class.NAME.", "class.latency.");
            checked += usize::from(is_ours);
            if is_ours && !known.contains(&name) {
                wrong.push(format!("{}:{line}: `{code}`: there is no key {name}", page.name()));
            }
        }
    }
    none(wrong);
    assert!(checked > 15, "only {checked} keys were found");
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let by_path: BTreeMap<PathBuf, &Page> =
        pages.iter().map(|page| (fs::canonicalize(&page.path).unwrap(), page)).collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in &pages {
        for (line, link) in &page.links {
            if link.contains("://") {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.path.clone(),
                _ => page.path.parent().unwrap().join(file),
            };
            let Ok(target) = fs::canonicalize(&target) else {
                wrong.push(format!("{}:{line}: {link}: there is no such file", page.name()));
                continue;
            };
            let has_anchor = |page: &&Page| anchor.is_empty() || page.has_anchor(anchor);
            if !anchor.is_empty() && !by_path.get(&target).is_some_and(has_anchor) {
                wrong.push(format!("{}:{line}: {link}: there is no such heading", page.name()));
            }
        }
    }
    none(wrong);
    assert!(checked > 100, "only {checked} links were found");
}

/// The book's table of contents has every page of `docs/`, once; measurements are records and no part of it.
#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string(manual::repository().join("docs/SUMMARY.md")).unwrap();
    let summary = Page::parse(Path::new("SUMMARY.md"), summary);
    let listed: Vec<String> = summary.links.iter().map(|(_, link)| link.clone()).collect();
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "{listed:?}");
    let missing: Vec<String> = pages()
        .iter()
        .filter_map(|page| page.name().strip_prefix("docs/").map(str::to_owned))
        .filter(|name| name != "SUMMARY.md" && !name.starts_with("measurements/") && !listed.contains(name))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    let book = fs::read_to_string(manual::repository().join("docs/book.toml")).unwrap();
    let book: toml::Table = toml::from_str(&book).unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("."));
}

#[test]
fn every_error_code_has_a_page_with_cause_remedy_and_example() {
    let declared = fs::read_to_string(manual::repository().join("protocol/src/error.rs")).unwrap();
    let codes: BTreeSet<&str> = declared.split('"').filter(|text| text.starts_with("GPOOL-E")).collect();
    assert!(codes.len() >= 19, "{codes:?}");
    let errors = fs::read_to_string(manual::repository().join("docs/errors.md")).unwrap();
    for code in &codes {
        let section = errors.split(&format!("\n## {code}\n")).nth(1).unwrap_or_else(|| panic!("no page of {code}"));
        let section = section.split("\n## ").next().unwrap();
        for part in ["**Cause.** ", "**Remedy.**", "**Example.**\n\n```text\n"] {
            assert!(section.contains(part), "the page of {code} has no {part}");
        }
        let example = section.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
        let flat = example.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.starts_with("gpool: ") && flat.ends_with(&format!("[{code}]")), "{flat}");
    }
    for page in pages() {
        let words = page.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for word in words.filter(|word| word.starts_with("GPOOL-E") && word.len() == 10 && !word.ends_with("xx")) {
            assert!(codes.contains(word), "{} names {word}, which there is not", page.name());
        }
    }
}

#[test]
fn the_socket_s_document_has_every_route_and_every_code() {
    let document = openapi::document().unwrap();
    let (documented, answered) = (openapi::documented(&document), openapi::answered().unwrap());
    assert!(answered.len() >= 14, "{answered:?}");
    // The name of a path's parameter is free.
    assert_eq!(documented, answered, "left: docs/reference/openapi.json, right: supervisor/src/http/routes.rs");
    // Whoever has no connection left hears that, whatever was asked.
    let operations = document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
    for (method, operation) in operations.filter(|(name, _)| *name != "parameters") {
        assert!(operation["responses"]["503"].is_object(), "{method} {} lacks 503", operation["operationId"]);
    }
    // Ids may be prefixes: of none, or of several.
    for (path, operations) in document["paths"].as_object().unwrap().iter().filter(|(path, _)| path.contains("{id}")) {
        for (method, operation) in operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let statuses = &operation["responses"];
            assert!(statuses["404"].is_object() && statuses["409"].is_object(), "{method} {path} lacks 404 or 409");
        }
    }
    let page = fs::read_to_string(manual::repository().join("docs/socket.md")).unwrap();
    for operation in &answered {
        let written = operation.replace("{id}", "ID").replace("{gpu}", "GPU");
        assert!(page.contains(&written), "docs/socket.md does not have {written}");
    }
    let declared = fs::read_to_string(manual::repository().join("protocol/src/error.rs")).unwrap();
    let codes: BTreeSet<&str> = declared.split('"').filter(|text| text.starts_with("GPOOL-E")).collect();
    let listed = document["components"]["schemas"]["Refusal"]["properties"]["code"]["enum"].as_array().unwrap();
    assert_eq!(listed.iter().map(|code| code.as_str().unwrap()).collect::<BTreeSet<_>>(), codes);
}

/// Messages that no scenario sees in all their forms.
#[test]
fn the_socket_s_document_has_every_form_of_a_message() {
    let document = openapi::document().unwrap();
    let text = |text: &str| text.to_owned();
    let edits = vec![
        Edit::Device {
            path: text("/dev/nvidia0"),
            major: 195,
            minor: 0,
            access: text("rw"),
            source: text("/dev/nvidia0"),
        },
        Edit::Mount { source: text("/a"), destination: text("/b"), options: vec![text("bind")] },
        Edit::Library { source: text("/a"), file_name: text("libcuda.so.1") },
        Edit::Env { name: text("A"), value: text("b") },
        Edit::Hook { path: text("/h"), args: vec![text("h")], env: vec![text("A=b")] },
    ];
    let uuid = GpuUuid(text("GPU-1"));
    let granted = LeaseGranted {
        lease_id: LeaseId(text("01")),
        gpu_uuid: uuid.clone(),
        gpu_uuids: vec![uuid.clone()],
        mechanism: Mechanism::Exclusive,
        edits,
    };
    let update = LeaseUpdate {
        fraction_permille: Some(100),
        limit_permille: Some(200),
        no_limit: true,
        memory_bytes: Some(1),
        spill_bytes: Some(1 << 30),
        class: Some(Class::Train),
        p99_ns: Some(20_000_000),
        no_p99: true,
        priority: Some(Priority::Burst),
        run_seconds: Some(60),
        no_run_time: true,
    };
    let request = Request {
        fraction_permille: 100,
        mode: Mode::TimeSlice,
        mig_profile: Some(text("1g.10gb")),
        isolation: Some(Isolation::Hardware),
        limit_permille: Some(200),
        memory: Some(MemoryCap::Permille(5)),
        gpus: 2,
        class: Class::Latency,
        p99_ns: Some(20_000_000),
        priority: Priority::Scavenger,
        team: Some(text("a")),
        project: Some(text("b")),
        cost_center: Some(text("c")),
        wait_seconds: Some(60),
        run_seconds: Some(60),
        deadline: Some(Deadline::Within(600)),
        resource: Some(CountedResource::Percent(30)),
        seal: Some(Seal::of(7)),
        devices: vec![text("0")],
        models: vec![text("H100")],
        min_memory_bytes: Some(1),
        spill_bytes: Some(1 << 30),
    };
    let container_id = ContainerId(text("c"));
    let asked = LeaseRequest {
        container_id: container_id.clone(),
        request,
        asked_for_parent: true,
        starts_once: true,
        memory_of_all: true,
        unenforced: true,
        container_uid: Some(1000),
        in_pod: Some(PodPlace { sandbox_id: text("s"), container_name: text("web") }),
        pod: Some(PodName { namespace: text("ml"), pod: text("train-0"), container: text("web") }),
        container_dir: Some(text("/var/lib/docker/containers/c")),
    };
    let standings = [
        Standing::Idle,
        Standing::Paused,
        Standing::Running { left_ns: 1 },
        Standing::Waiting { waited_ns: 1, behind: Some(container_id), cause: WaitCause::Ceiling { left_ns: 2 } },
        Standing::Waiting { waited_ns: 1, behind: None, cause: WaitCause::Gang },
    ];
    let waiting = LeaseWaiting {
        waiting: WaitingView {
            container_id: asked.container_id.clone(),
            pod: asked.pod.clone(),
            place: 1,
            request: asked.request.clone(),
            owner_uid: 1000,
            since_unix_ms: 1,
            waited_ms: 2,
            cause: text("no room"),
            kept_on: vec![uuid],
            begins_unix_ms: Some(3),
            deadline_unix_ms: Some(4),
            is_at_risk: true,
            owner_had_gpu_seconds: Some(5),
            held_by: Some(0),
            is_first: true,
        },
        retry_ms: 200,
    };
    let mut messages = vec![
        ("LeaseWaiting", serde_json::to_value(&waiting).unwrap()),
        ("LeaseGranted", serde_json::to_value(&granted).unwrap()),
        ("LeaseUpdate", serde_json::to_value(&update).unwrap()),
        ("LeaseRequest", serde_json::to_value(&asked).unwrap()),
        ("BindRequest", serde_json::to_value(BindRequest { init_pid: HostPid(1) }).unwrap()),
    ];
    messages.extend(standings.iter().map(|standing| ("Standing", serde_json::to_value(standing).unwrap())));
    for (name, message) in messages {
        let schema = serde_json::json!({"$ref": format!("#/components/schemas/{name}")});
        assert_eq!(openapi::defects(&document, &schema, &message), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn what_is_made_from_the_code_is_fresh() {
    for file in manual::generated().unwrap() {
        let there = fs::read_to_string(manual::repository().join(file.path)).unwrap_or_default();
        assert!(there == file.text, "{} is not what the code says; run make reference", file.path);
    }
}

/// What the schema says of values is what the parser takes.
#[test]
fn the_schema_agrees_with_the_parser() {
    let read = |text: String| parse(Path::new("config.toml"), &text);
    for (end, values) in schema::CHOICES {
        for name in catalogue().into_iter().map(|key| key.name).filter(|name| name.ends_with(end)) {
            let written = |value: &str| match end {
                "policy.classes" => format!("{name} = [{value:?}]\n"),
                _ => format!("{name} = {value:?}\n"),
            };
            for value in values {
                assert!(read(written(value)).is_ok(), "{}", written(value));
            }
            let refusal = read(written("something-else")).unwrap_err().to_string();
            for value in values {
                assert!(refusal.contains(&format!("`{value}`")), "{refusal}");
            }
            assert_eq!(refusal.matches('`').count(), 2 + 2 * values.len(), "{name} has other values: {refusal}");
        }
    }
    assert!(read("[class.batch]\nhang_seconds = 3601\n".into()).is_err());
    let published: serde_json::Value = serde_json::from_str(&schema::text()).unwrap();
    let mut defaults = serde_json::to_value(gpool_configuration::Configuration::default()).unwrap();
    leave_out_nulls(&mut defaults);
    assert_eq!(openapi::defects(&published, &published, &defaults), Vec::<String>::new());
    let unknown = serde_json::json!({"lease": {"hold_mss": 1}});
    assert_eq!(openapi::defects(&published, &published, &unknown).len(), 1);
}

/// TOML has no null: a key without a value is left out.
fn leave_out_nulls(value: &mut serde_json::Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(leave_out_nulls);
    }
}

/// Those that `gpool --help` lists stand on the page.
#[test]
fn every_exit_code_has_its_line() {
    let help = gpool_cli::command().get_after_help().unwrap().to_string();
    let page = fs::read_to_string(manual::repository().join("docs/reference/exit-codes.md")).unwrap();
    let first_word = |line: &'_ str| line.strip_prefix("  ").and_then(|line| line.split(' ').next()).map(str::to_owned);
    // A line that goes on is indented further.
    let numbers: Vec<String> = help.lines().filter_map(first_word).filter(|number| !number.is_empty()).collect();
    assert!(numbers.len() >= 10, "{numbers:?}");
    for number in numbers {
        assert!(page.contains(&format!("\n| {number} | ")), "docs/reference/exit-codes.md has no line for {number}");
    }
}

#[test]
fn every_kind_of_event_is_told_of() {
    let read = |file: &str| fs::read_to_string(manual::repository().join(file)).unwrap();
    let code = read("protocol/src/events.rs");
    let body = code.split("pub enum EventKind {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
    let names = body.lines().filter_map(|line| line.trim().strip_suffix(',')).filter(|name| !name.starts_with("//"));
    let kebab = |name: &str| {
        let parted = name.chars().map(|letter| match letter.is_ascii_uppercase() {
            true => format!("-{}", letter.to_ascii_lowercase()),
            false => letter.to_string(),
        });
        parted.collect::<String>().trim_start_matches('-').to_owned()
    };
    let kinds: BTreeSet<String> = names.map(kebab).collect();
    assert!(kinds.len() > 20, "{kinds:?}");
    let document: serde_json::Value = serde_json::from_str(&read("docs/reference/openapi.json")).unwrap();
    let told = &document["components"]["schemas"]["Event"]["properties"]["kind"]["enum"];
    let told: BTreeSet<String> = serde_json::from_value(told.clone()).unwrap();
    assert_eq!(told, kinds);
    let page = read("docs/socket.md");
    none(
        kinds
            .iter()
            .filter(|kind| !page.contains(&format!("`{kind}`")))
            .map(|kind| format!("{kind} is missing"))
            .collect(),
    );
}

#[test]
fn every_promise_has_a_number_of_its_own() {
    let text = fs::read_to_string(manual::repository().join("SPECIFICATION.md")).unwrap();
    let is_number = |cell: &&str| {
        let digits = cell.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
        digits.len() < cell.len() && digits.starts_with(|digit: char| digit.is_ascii_digit())
    };
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let numbers: Vec<&str> = lines.filter(is_number).collect();
    assert!(numbers.len() > 200, "{} promises were found", numbers.len());
    let twice = numbers.iter().enumerate().filter(|(index, number)| numbers[..*index].contains(number));
    none(twice.map(|(_, number)| format!("two promises are called {number}")).collect());
}

#[test]
fn headings_of_a_page_differ() {
    for page in pages() {
        let slugs: Vec<String> = page.headings.iter().map(|heading| slug(heading)).collect();
        let unique: BTreeSet<&String> = slugs.iter().collect();
        // The changelog has the same headings for each version.
        assert!(unique.len() == slugs.len() || page.name() == "CHANGELOG.md", "{}: {slugs:?}", page.name());
    }
}
