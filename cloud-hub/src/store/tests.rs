//! What the store promises, told as stories.

use super::*;
use crate::logic::RestoredNode;
use shared::ids::{PlanEpoch, RequestId, ScopeId, ServiceId, SessionEpoch, VariantId};
use shared::plan::{Actual, DispatchSetting, Failure, Outcome, Plan, PlanRows};
use shared::units::{Bytes, Micros, Moment, Quality, Tokens};
use shared::work::{Needs, Service, Variant};
use std::collections::{BTreeMap, BTreeSet};

const NOW: UnixTime = UnixTime(1_800_000_000);

fn hub() -> NodeId {
    NodeId::new("cloud/hub").expect("good")
}

fn fresh(limits: RecordLimits) -> (tempfile::TempDir, Db) {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("hub.db");
    Store::create(&path, &hub(), "h:1", NOW).expect("made");
    let db = Db::open(&path, limits).expect("open");
    (temp, db)
}

fn record(number: u128) -> Record {
    Record {
        request: RequestId(number),
        ingress: hub(),
        service: ServiceId::new("assistant").expect("good"),
        needs: Needs::default(),
        arrived: Moment(0),
        waited: Micros::ZERO,
        attempts: Vec::new(),
        served_by: None,
        quality: None,
        actual: Actual::default(),
        outcome: Outcome::Failed(Failure::DeadlineExceeded),
        attained: None,
    }
}

fn service(id: &str, variant: &str) -> Service {
    Service {
        id: ServiceId::new(id).expect("good"),
        aliases: Vec::new(),
        variants: vec![Variant {
            id: VariantId::new(variant).expect("good"),
            weights_sha256: None,
            quantisation: String::new(),
            context: Tokens(2048),
            memory: Bytes(0),
            quality: Quality::new(0.5).expect("good"),
            quality_source: "test".to_owned(),
        }],
    }
}

fn plan(sequence: u64) -> Plan {
    Plan {
        scope: ScopeId::new("eu/site-7/node-1").expect("good"),
        owner: hub(),
        epoch: PlanEpoch { incarnation: 2, sequence },
        based_on: None,
        valid_for: Micros::from_secs(60),
        rows: PlanRows::Dispatch(DispatchSetting { policy: "edge-only".to_owned(), config: serde_json::Value::Null }),
    }
}

#[test]
fn records_stay_within_their_bounds_and_give_the_disk_back() {
    let one = serde_json::to_vec(&record(1)).expect("json").len() as u64;
    let limits = RecordLimits { bytes_max: one * 500, count_max: 1_000_000 };
    let (temp, mut db) = fresh(limits);
    let size = || std::fs::metadata(temp.path().join("hub.db")).expect("there").len();
    for number in 0..600 {
        db.add_record(&record(number), NOW).expect("kept");
    }
    let kept = db.last_records(10_000).expect("read");
    assert!(kept.len() <= 500 && kept.len() >= 400, "{}", kept.len());
    assert_eq!(kept[0].record.request, RequestId(599), "the newest stays");
    assert!(db.record(RequestId(0)).expect("read").is_empty(), "the oldest went");
    db.quick.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("checkpoint");
    let full = size();
    db.limits = RecordLimits { bytes_max: one * 50, count_max: 1_000_000 };
    db.add_record(&record(600), NOW).expect("kept");
    db.quick.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("checkpoint");
    assert!(size() < full / 2, "{} of {full} bytes left", size());
}

#[test]
fn a_record_that_comes_twice_is_kept_once() {
    let (_temp, mut db) = fresh(RecordLimits { bytes_max: u64::MAX, count_max: 100 });
    for _ in 0..200 {
        db.add_record(&record(1), NOW).expect("kept");
    }
    let elsewhere = Record { ingress: NodeId::new("eu/n").expect("good"), ..record(1) };
    db.add_record(&elsewhere, NOW).expect("kept");
    assert_eq!(db.record(RequestId(1)).expect("read").len(), 2, "one for each ingress");
    assert_eq!(db.last_records(10).expect("read").len(), 2, "repetitions do not count against the limits");
}

#[test]
fn the_count_bound_holds_across_a_restart() {
    let (temp, mut db) = fresh(RecordLimits { bytes_max: u64::MAX, count_max: 100 });
    for number in 0..90 {
        db.add_record(&record(number), NOW).expect("kept");
    }
    drop(db);
    let limits = RecordLimits { bytes_max: u64::MAX, count_max: 100 };
    let mut db = Db::open(&temp.path().join("hub.db"), limits).expect("open");
    for number in 90..110 {
        db.add_record(&record(number), NOW).expect("kept");
    }
    assert!(db.last_records(1_000).expect("read").len() <= 100);
}

#[test]
fn the_catalogue_refuses_contradictions_and_keeps_what_it_had() {
    let (_temp, mut db) = fresh(RecordLimits::default());
    db.put_service(&service("assistant", "small")).expect("kept");
    db.put_service(&service("assistant", "large")).expect("replaced");
    let mut taken = service("other", "tiny");
    taken.aliases = vec![ServiceId::new("assistant").expect("good")];
    assert!(matches!(db.put_service(&taken), Err(CatalogueError::Bad(_))));
    let held = db.catalogue().expect("read");
    assert_eq!(held.iter().count(), 1);
    assert!(held.variant(&VariantId::new("large").expect("good")).is_some());
    assert!(db.remove_service(&ServiceId::new("nothing").expect("good")).expect("read").is_none());
    assert_eq!(
        db.remove_service(&ServiceId::new("assistant").expect("good")).expect("gone").expect("was there").iter().count(),
        0
    );
}

#[test]
fn plans_and_facts_only_rise() {
    let (_temp, mut db) = fresh(RecordLimits::default());
    db.put_plans(&[plan(5)]).expect("kept");
    db.put_plans(&[plan(4)]).expect("ignored");
    assert_eq!(db.plans().expect("read"), [plan(5)]);
    db.update_meta(|meta| meta.session_epoch = SessionEpoch(9)).expect("kept");
    let meta = db
        .update_meta(|meta| {
            meta.session_epoch = SessionEpoch(3);
            meta.clock = UnixTime(1);
            meta.incarnation = 1;
        })
        .expect("kept");
    assert_eq!((meta.session_epoch, meta.clock, meta.incarnation), (SessionEpoch(9), NOW, 1));
}

#[test]
fn what_logic_knows_of_a_node_comes_back() {
    let (_temp, mut db) = fresh(RecordLimits::default());
    let mut known = RestoredNode {
        node: NodeId::new("eu/site-7/node-1").expect("good"),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        serials: BTreeSet::from(["4f".to_owned(), "5f".to_owned()]),
        revoked: BTreeSet::from(["4f".to_owned()]),
        drained: true,
    };
    let expires = NOW.plus(std::time::Duration::from_secs(60));
    db.put_node(&known, expires, NOW).expect("kept");
    assert_eq!(db.restored_nodes().expect("read"), [known.clone()]);
    assert!(db.node(&known.node).expect("read").expect("there").revoked.is_none(), "one good certificate is left");
    assert_eq!(db.expiries().expect("read").get(&known.node), Some(&expires));
    known.revoked.insert("5f".to_owned());
    db.put_node(&known, expires, NOW).expect("kept");
    assert_eq!(db.node(&known.node).expect("read").expect("there").revoked, Some(NOW));
    assert!(db.expiries().expect("read").is_empty(), "no good certificate is left");
    assert_eq!(db.revoked_serials(NOW).expect("read"), ["4f", "5f"]);
    assert!(
        db.revoked_serials(expires.plus(std::time::Duration::from_secs(1))).expect("read").is_empty(),
        "expired ones are gone"
    );
}

#[tokio::test]
async fn the_writer_answers_in_order_and_ends_when_it_is_let_go() {
    let (_temp, db) = fresh(RecordLimits::default());
    let (store, thread) = Store::start(db).expect("started");
    assert!(store.keep_record(Box::new(record(7)), NOW));
    let kept = store.call(|db| db.record(RequestId(7))).await.expect("read");
    assert_eq!(kept.len(), 1, "the record came before the question");
    drop(store);
    tokio::task::spawn_blocking(|| thread.join()).await.expect("ended");
}
