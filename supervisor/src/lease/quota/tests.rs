//! Quotas: what counts, for whom, and in which words somebody is refused.

use super::super::book::Held;
use super::super::record::sample;
use super::super::taken::{RevocationRecord, Taking};
use super::*;
use gpool_protocol::{GpuUuid, LeaseId, Priority};
use std::path::Path;
use std::time::Instant;

const GIB: u64 = 1 << 30;

fn quota(text: &str) -> Quota {
    gpool_configuration::parse(Path::new("config.toml"), text).unwrap().quota
}

fn lease(id: &str, team: Option<&str>, permille: u16) -> Record {
    Record {
        lease_id: LeaseId(id.into()),
        team: team.map(str::to_owned),
        fraction_permille: permille,
        memory_cap_bytes: 4 * GIB,
        ..sample()
    }
}

fn counted(record: &Record, gpus: &[Gpu]) -> (u64, u64, u64) {
    let amounts = Tally::of(record, gpus).amounts;
    (amounts.share_permille, amounts.memory_bytes / GIB, amounts.leases)
}

fn kept(record: Record) -> Held {
    Held { record, gpus: vec![0], until: Instant::now() }
}

#[test]
fn a_lease_counts_what_nobody_else_can_be_promised() {
    let own = lease("01", None, 300);
    let of = |change: &dyn Fn(&mut Record)| {
        let mut record = own.clone();
        change(&mut record);
        counted(&record, &[])
    };
    assert_eq!(of(&|_| {}), (300, 4, 1));
    assert_eq!(of(&|its| its.gpu_uuids = vec![GpuUuid("a".into()), GpuUuid("b".into())]), (600, 8, 1));
    assert_eq!(of(&|its| its.priority = Priority::Burst), (0, 4, 1));
    assert_eq!(of(&|its| its.priority = Priority::Scavenger), (0, 4, 1));
    assert_eq!(of(&|its| its.mechanism = Mechanism::Mps), (300, 4, 1));
    assert_eq!(of(&|its| its.mechanism = Mechanism::TimeSlice), (300, 0, 1), "there is no cap");
    assert_eq!(of(&|its| its.mechanism = Mechanism::Exclusive), (1000, 4, 1));
    let whole = |its: &mut Record| (its.mechanism, its.priority) = (Mechanism::Exclusive, Priority::Burst);
    assert_eq!(of(&whole), (1000, 4, 1), "a whole GPU is nobody else's, whatever the priority");
    let taken = |its: &mut Record| {
        its.revocation = Some(RevocationRecord {
            devices: [(195, 0)].into(),
            is_denied: true,
            is_settled: false,
            by: Taking::Asked,
        });
    };
    assert_eq!(of(&taken), (300, 4, 1), "something of it may be left there");
    let settled = |its: &mut Record| (taken(its), its.give_share_up()).1;
    assert_eq!(of(&settled), (0, 0, 0));
}

#[test]
fn an_instance_counts_by_its_compute_slices() {
    let of = |profile: &str, mechanism, permille| {
        let record = Record { mig_profile: Some(profile.into()), mechanism, ..lease("01", None, permille) };
        counted(&record, &[]).0
    };
    assert_eq!(of("3g.40gb", Mechanism::Mig, 1000), 428);
    assert_eq!(of("7g.80gb", Mechanism::Mig, 1000), 1000);
    assert_eq!(of("3g.40gb", Mechanism::Slice, 500), 214, "half of an instance");
    assert!(7 * of("1g.10gb", Mechanism::Mig, 1000) <= 1000, "seven of them are a GPU and no more");
    let mut gpu = Gpu::sample(0);
    gpu.name = "NVIDIA A30".into();
    let mut record = Record { mig_profile: Some("1g.6gb".into()), ..lease("01", None, 1000) };
    (record.mechanism, record.gpu_uuid) = (Mechanism::Mig, gpu.uuid.clone());
    assert_eq!(counted(&record, &[gpu]).0, 250, "an A30 has four");
}

#[test]
fn leases_count_for_their_team_and_their_user_wherever_they_stand() {
    let own = Record { owner_uid: 1000, ..lease("03", None, 100) };
    let book = Book {
        held: vec![kept(lease("01", Some("vision"), 300)), kept(own)],
        stranded: vec![lease("02", Some("vision"), 200), lease("04", Some("speech"), 50)],
        ..Book::default()
    };
    let standing = Standing::of(&book, &[]);
    let held = |holder: Holder| (standing.held(&holder).share_permille, standing.held(&holder).leases);
    assert_eq!(held(Holder::Team("vision".into())), (500, 2));
    assert_eq!(held(Holder::Team("speech".into())), (50, 1));
    assert_eq!((held(Holder::NoTeam), held(Holder::User(1000))), ((100, 1), (100, 1)));
    assert_eq!(held(Holder::User(0)), (550, 3));
    assert_eq!((held(Holder::Team("other".into())), standing.holders().count()), ((0, 0), 5));
}

#[test]
fn the_file_and_requests_write_memory_the_same_way() {
    for size in
        ["4GiB", "4G", "4gb", "1536 MiB", "1048577B", "1t", "2K", "0GiB", "4.5GiB", "4XB", "-1GiB", "25%", "80", ""]
    {
        let parsed = gpool_configuration::parse(Path::new("config.toml"), &format!("quota.no_team.memory = {size:?}"));
        let read = parsed.ok().and_then(|read| Some(read.quota.no_team.memory?.bytes));
        assert_eq!(read, gpool_protocol::parse_bytes(size).ok(), "{size}");
    }
}

#[test]
fn both_quotas_hold_and_what_others_ahead_will_have_counts_as_well() {
    let quota = quota("[quota.team.vision]\ngpus = \"0.8\"\n[quota.user.1000]\nleases = 2\n");
    let of = |id: &str, team: Option<&str>, uid, permille| {
        Tally::of(&Record { owner_uid: uid, ..lease(id, team, permille) }, &[])
    };
    let book = Book { stranded: vec![lease("01", Some("vision"), 500)], ..Book::default() };
    let standing = Standing::of(&book, &[]);
    let check = |wanted: &Tally, ahead: &[Tally]| standing.check(&quota, None, wanted, ahead);
    assert_eq!(check(&of("02", Some("vision"), 0, 300), &[]), Ok(()));
    let over = check(&of("02", Some("vision"), 0, 301), &[]).unwrap_err();
    let Beyond::Reserved(excess) = over.beyond else { panic!("{over:?}") };
    assert_eq!((over.table.as_str(), excess.held), ("quota.team.vision", 500));
    assert_eq!(check(&of("02", Some("speech"), 0, 900), &[]), Ok(()), "another team has none");
    let ahead = [of("03", Some("vision"), 0, 200), of("04", Some("speech"), 0, 900)];
    assert_eq!(check(&of("02", Some("vision"), 0, 100), &ahead), Ok(()));
    assert!(check(&of("02", Some("vision"), 0, 101), &ahead).is_err());
    let two = [of("05", None, 1000, 100), of("06", Some("speech"), 1000, 100)];
    assert_eq!(check(&of("07", Some("vision"), 1000, 100), &two[..1]), Ok(()));
    assert_eq!(check(&of("07", Some("vision"), 1000, 100), &two).unwrap_err().holder, Holder::User(1000));
}

#[test]
fn one_container_is_no_larger_than_one_may_be_however_much_is_left() {
    let quota =
        quota("[quota.default_team]\ncontainer_gpus = \"0.5\"\n[quota.user.1000]\ncontainer_memory = \"2GiB\"\n");
    let of = |uid, permille| Tally::of(&Record { owner_uid: uid, ..lease("01", Some("vision"), permille) }, &[]);
    let check = |own: Option<&Tally>, wanted: &Tally| Standing::default().check(&quota, own, wanted, &[]);
    assert_eq!(check(None, &of(0, 500)), Ok(()));
    let over = check(None, &of(0, 501)).unwrap_err().worded();
    for part in ["[quota.default_team] container_gpus allows containers of team vision 0.5 GPUs", "0.501 is asked for"]
    {
        assert!(over.message.contains(part), "{over}");
    }
    assert!(over.remedy.contains("ask for 0.5 or less") && !over.remedy.contains("wait"), "{over}");
    let over = check(None, &of(1000, 100)).unwrap_err().worded();
    assert!(
        over.message.contains("[quota.user.1000] container_memory allows containers of user 1000 2GiB of memory each")
    );
    assert_eq!(check(Some(&of(0, 700)), &of(0, 700)), Ok(()), "it keeps what it has");
    assert_eq!(check(Some(&of(0, 700)), &of(0, 600)), Ok(()), "and may have less of it");
    assert!(check(Some(&of(0, 600)), &of(0, 700)).is_err());
    // Whoever comes back to a place is as large as it was, also where it has to look for another one.
    let large = lease("01", Some("vision"), 700);
    let asked: LeaseRequest = serde_json::from_value(serde_json::json!({
        "container_id": large.container_id, "request": {"fraction_permille": 700}
    }))
    .unwrap();
    let book = Book { held: vec![kept(large)], ..Book::default() };
    let back = |permille| of(0, permille).coming_back((&asked, 0), (&[], &book));
    assert_eq!((check(None, &back(700)), check(None, &back(701)).is_err()), (Ok(()), true));
    assert!(check(None, &of(0, 700).coming_back((&asked, 7), (&[], &book))).is_err(), "it is another user's");
    let of_another = Tally::of(&lease("01", Some("speech"), 700), &[]).coming_back((&asked, 0), (&[], &book));
    assert!(check(None, &of_another).is_err(), "it was another team's");
}

#[test]
fn who_comes_back_or_changes_keeps_what_it_has_under_a_lower_quota() {
    let low = quota("[quota.team.vision]\ngpus = \"0.1\"\nleases = 0\n[quota.no_team]\nleases = 0\n");
    let record = lease("01", Some("vision"), 300);
    let own = Tally::of(&record, &[]);
    let book = Book { held: vec![kept(record.clone())], ..Book::default() };
    let standing = Standing::of(&book, &[]);
    let check = |new: &Record| standing.check(&low, Some(&own), &Tally::of(new, &[]), &[]);
    assert_eq!(check(&record), Ok(()));
    assert_eq!(check(&lease("02", Some("vision"), 200)), Ok(()), "lower, and still above it");
    let over = check(&lease("02", Some("vision"), 301)).unwrap_err().worded();
    assert!(over.message.contains("0.301 is asked for") && over.remedy.contains("0.1 or less"), "{over}");
    let burst = Record { priority: Priority::Burst, ..record.clone() };
    let own = Tally::of(&burst, &[]);
    let again = standing.check(&low, Some(&own), &Tally::of(&record, &[]), &[]);
    assert!(again.is_err(), "what it did not reserve before is more");
    assert!(check(&lease("02", None, 300)).is_err(), "it had nothing of another team's");
}

/// A tenth of an hour on 1970-01-09, a Friday, by a lease of vision that user 1000 has started.
fn spent() -> Option<Arc<Spent>> {
    Some(Arc::new(Spent::of(&Holder::both(Some("vision"), 1000), 8 * 86_400, 360_000_000_000)))
}

#[test]
fn who_has_spent_its_budget_is_promised_no_more_until_the_next_one_begins() {
    let quota = quota("[quota.team.vision]\ngpu_hours = \"0.1/week\"\n[quota.user.7]\ngpu_hours = \"0/day\"\n");
    let at = |day: u64| Standing::default().with_spent(spent(), day * 86_400 + 5);
    let of =
        |team: Option<&str>, uid, permille| Tally::of(&Record { owner_uid: uid, ..lease("02", team, permille) }, &[]);
    let check = |day, wanted: &Tally, own: Option<&Tally>| at(day).check(&quota, own, wanted, &[]);
    let over = check(8, &of(Some("vision"), 0, 100), None).unwrap_err().worded().to_string();
    assert_eq!(
        over,
        "gpool: [quota.team.vision] gpu_hours allows team vision 0.1 hours of a GPU in a week, and 0.1 are spent; the next week \
         begins at 1970-01-12T00:00:00Z; ask for priority=burst, which reserves no share and has what is idle, or have the \
         quota raised and run gpool config reload [GPOOL-E206]"
    );
    assert_eq!(check(11, &of(Some("vision"), 0, 100), None), Ok(()), "on Monday");
    assert_eq!(check(8, &of(Some("speech"), 1000, 900), None), Ok(()), "another team has none, nor has this user");
    let record = lease("02", Some("vision"), 300);
    let burst = Tally::of(&Record { priority: Priority::Burst, ..record.clone() }, &[]);
    assert_eq!(check(8, &burst, None), Ok(()));
    let own = Tally::of(&record, &[]);
    assert_eq!(check(8, &own, Some(&own)), Ok(()), "who comes back has what it had");
    assert_eq!(check(8, &of(Some("vision"), 0, 299), Some(&own)), Ok(()));
    assert!(check(8, &of(Some("vision"), 0, 301), Some(&own)).is_err() && check(8, &own, Some(&burst)).is_err());
    let unknown = Standing::default().with_spent(None, 8 * 86_400);
    let wanted = of(Some("vision"), 0, 100);
    assert_eq!(unknown.check(&quota, None, &wanted, &[]), Ok(()), "nobody is refused for what is not known");
    let never = check(8, &of(None, 7, 100), None).unwrap_err().worded();
    assert!(never.message.ends_with("[quota.user.7] gpu_hours allows user 7 no guaranteed share"), "{never}");
    assert!(!never.remedy.contains("wait"), "{never}");
}

#[test]
fn who_has_no_hours_keeps_its_part_of_a_quota_of_gpus() {
    let quota = quota("[quota.team.vision]\ngpus = \"0.5\"\ngpu_hours = \"0.1/week\"\n");
    let beyond = Record { priority: Priority::Burst, has_no_hours: true, ..lease("01", Some("vision"), 300) };
    let own = Tally::of(&beyond, &[]);
    let standing = |day: u64, others: &[Record]| {
        let stranded = [std::slice::from_ref(&beyond), others].concat();
        Standing::of(&Book { stranded, ..Book::default() }, &[]).with_spent(spent(), day * 86_400 + 5)
    };
    let held = standing(8, &[]).held(&Holder::Team("vision".into())).share_permille;
    assert_eq!(held, 300, "nobody of its team takes it meanwhile");
    let again = Tally::of(&beyond.with_its_promise(), &[]);
    let check = |day, others: &[Record], own: Option<&Tally>, wanted: &Tally| {
        standing(day, others).check(&quota, own, wanted, &[])
    };
    // By gpool update, as long as the budget is spent; and when there are hours.
    assert!(check(8, &[], Some(&own), &again).is_err());
    assert_eq!(check(11, &[], Some(&own), &again), Ok(()));
    let late = |permille| Record { lease_id: LeaseId("03".into()), fraction_permille: permille, ..beyond.clone() };
    assert_eq!(check(8, &[], None, &Tally::of(&late(200), &[])), Ok(()), "with what is idle");
    let over = check(8, &[], None, &Tally::of(&late(201), &[])).unwrap_err();
    assert!(matches!(over.beyond, Beyond::Reserved(excess) if excess.held == 300), "{over:?}");
    let lowered = lease("02", Some("vision"), 400);
    assert_eq!(check(11, &[lowered], Some(&own), &again), Ok(()), "a quota that was lowered takes nothing");
    let wider = Record { fraction_permille: 600, ..beyond.clone() };
    assert!(check(8, &[], Some(&own), &Tally::of(&wider, &[])).is_err(), "nor is it a way around one");
}

#[test]
fn a_refusal_names_who_what_and_what_to_do() {
    let quota = quota(
        "[quota.team.vision]\ngpus = \"2\"\nmemory = \"10GiB\"\n[quota.default_team]\nleases = 1\n[quota.no_team]\nleases = 0\n",
    );
    let said = |held: &[Record], wanted: &Record, own: Option<&Record>| {
        let book = Book { stranded: held.to_vec(), ..Book::default() };
        let own = own.map(|own| Tally::of(own, &[]));
        let over = Standing::of(&book, &[]).check(&quota, own.as_ref(), &Tally::of(wanted, &[]), &[]);
        over.unwrap_err().worded().to_string()
    };
    let two = |id: &str, permille| {
        let uuids = vec![GpuUuid("a".into()), GpuUuid("b".into())];
        Record { gpu_uuids: uuids, memory_cap_bytes: GIB, ..lease(id, Some("vision"), permille) }
    };
    assert_eq!(
        said(&[two("01", 750)], &two("02", 500), None),
        "gpool: [quota.team.vision] gpus allows team vision 2 GPUs of guaranteed share: 1.5 is reserved, and 1 is asked for; \
         ask for 0.5 or less in all, ask for priority=burst, which reserves no share and has what is idle, end a container \
         (gpool quota ls shows who has how much), or add wait, for example GPOOL_WAIT=10m (annotation gpool.io/wait, or gpool run --wait 10m) \
         [GPOOL-E206]"
    );
    let own = two("01", 750);
    let changed = said(&[own.clone(), two("02", 250)], &two("01", 1000), Some(&own));
    assert!(changed.contains("0.5 is reserved by others of its containers, and 2 is asked for"), "{changed}");
    assert!(changed.contains("ask for 1.5 or less in all") && !changed.contains("GPOOL_WAIT"), "{changed}");
    let three = lease("03", Some("vision"), 100);
    let memory = said(&[three.clone(), three.clone()], &three, None);
    assert!(memory.contains("memory allows team vision 10GiB of memory: 8GiB is reserved, and 4GiB is"), "{memory}");
    assert!(memory.contains("ask for 2048MiB or less in all") && !memory.contains("burst"), "{memory}");
    let large = Record { memory_cap_bytes: 11 * GIB, ..three };
    let never = said(&[], &large, None);
    assert!(never.contains("10GiB of memory altogether, and 11GiB is asked for"), "{never}");
    assert!(never.contains("have the quota raised") && !never.contains("GPOOL_WAIT"), "{never}");
    let other = lease("04", Some("a.b"), 100);
    let number = said(std::slice::from_ref(&other), &other, None);
    assert!(number.contains("[quota.default_team] leases allows team a.b 1 container: 1 is reserved"), "{number}");
    let nameless = said(&[], &lease("05", None, 100), None);
    assert!(nameless.contains("[quota.no_team] leases allows no containers without a team; name a team"), "{nameless}");
}

#[test]
fn who_is_over_its_quota_for_what_ended_containers_keep_is_told_for_how_long() {
    let quota = quota("[quota.team.vision]\ngpus = \"1\"\n[quota.team.speech]\nleases = 1\n");
    let until = Instant::now() + std::time::Duration::from_secs(7);
    let held = |record| Held { record, gpus: vec![0], until };
    let said = |book: &Book, wanted: &Record| {
        let over = Standing::of(book, &[]).check(&quota, None, &Tally::of(wanted, &[]), &[]);
        over.unwrap_err().worded().remedy
    };
    let mut book = Book { held: vec![held(lease("01", Some("vision"), 600))], ..Book::default() };
    let wanted = lease("02", Some("vision"), 500);
    assert_eq!(
        said(&book, &wanted),
        "ask for 0.4 or less in all, ask for priority=burst, which reserves no share and has what is idle, try again soon, or \
         add wait, for example GPOOL_WAIT=30s (annotation gpool.io/wait, or gpool run --wait 30s): 1 ended container keeps 0.6 for up to 7 s more"
    );
    book.stranded.push(lease("03", Some("vision"), 600));
    assert!(said(&book, &wanted).contains("end a container"), "one that runs has too much without it");
    let book = Book { held: vec![held(lease("01", Some("speech"), 100))], ..Book::default() };
    let number = said(&book, &lease("02", Some("speech"), 100));
    assert!(number.ends_with("1 ended container keeps what counts here for up to 7 s more"), "{number}");
}
