use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use squall_fabric::{NodeId, net::Identity};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use super::*;

/// A directory that goes with the test.
struct Directory(TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().unwrap())
    }

    fn files(&self) -> Files {
        Files::in_directory(self.0.path().join("keys"))
    }
}

#[test]
fn a_node_s_keys_are_good_for_its_node_and_cluster_only() {
    let directory = Directory::new();
    let files = directory.files();
    Authority::create("bank").unwrap().save(&files, false).unwrap();
    let authority = Authority::load(&files).unwrap();
    assert_eq!(authority.cluster(), "bank");
    authority.issue(NodeId(3), 365).unwrap().save(&files, false).unwrap();
    let identity = Identity::load(&files.of(NodeId(3))).unwrap();
    assert_eq!(identity.node(), NodeId(3));
    assert!(identity.is_for("bank") && !identity.is_for("shop"));
}

#[test]
fn keys_of_another_authority_are_refused_and_a_renewed_one_is_of_the_same() {
    let (bank, other) = (Authority::create("bank").unwrap(), Authority::create("bank").unwrap());
    let of = |authority: &Authority| authority.issue(NodeId(1), 1).unwrap();
    let accepted = |keys: &IssuedKeys| Identity::from_pem(bank.certificate(), keys.certificate(), keys.key()).is_ok();
    assert!(!accepted(&of(&other)));
    let (first, renewed) = (of(&bank), of(&bank));
    assert!(accepted(&first) && accepted(&renewed));
    assert_ne!(first.key(), renewed.key());
}

#[test]
fn only_the_owner_can_read_a_key_and_nothing_is_replaced_unasked() {
    let directory = Directory::new();
    let files = directory.files();
    let authority = Authority::create("bank").unwrap();
    authority.save(&files, false).unwrap();
    authority.issue(NodeId(1), 365).unwrap().save(&files, false).unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(files.authority_key()), mode(files.of(NodeId(1)).key)), (0o600, 0o600));
    let before = fs::read(files.of(NodeId(1)).key).unwrap();
    let again = authority.issue(NodeId(1), 365).unwrap();
    let error = again.save(&files, false).unwrap_err().to_string();
    assert!(error.contains("node-1.key") && error.contains("--force"), "{error}");
    assert_eq!(fs::read(files.of(NodeId(1)).key).unwrap(), before);
    let error = Authority::create("bank").unwrap().save(&files, false).unwrap_err().to_string();
    assert!(error.contains("ca.key") && error.contains("certificates of the old one"), "{error}");
    again.save(&files, true).unwrap();
    assert_eq!(mode(files.of(NodeId(1)).key), 0o600, "one that replaces another is as private");
    assert_eq!(fs::read_to_string(files.of(NodeId(1)).key).unwrap(), again.key());
    let left: Vec<_> =
        fs::read_dir(directory.0.path().join("keys")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "nothing else is left: {left:?}");
}

#[test]
fn a_certificate_says_whose_it_is_and_how_long() {
    let authority = Authority::create("bank").unwrap();
    let [of_authority] = &describe(authority.certificate()).unwrap()[..] else { panic!("one certificate") };
    assert_eq!(of_authority.subject, Subject::Authority { cluster: "bank".into() });
    let keys = authority.issue(NodeId(7), 30).unwrap();
    let [of_node] = &describe(keys.certificate()).unwrap()[..] else { panic!("one certificate") };
    let principal = Principal::Member(NodeId(7));
    let name = principal.dns_name("bank");
    assert_eq!(of_node.subject, Subject::Owner { principal, name, of_issuer: true });
    let days = (of_node.until - OffsetDateTime::now_utc()).whole_hours();
    assert!((30 * 24 - 1..=30 * 24).contains(&days), "{days} hours");
    let said = describe(keys.key()).unwrap_err();
    assert!(said.contains("private key"), "{said}");
    assert!(describe("").is_err() && describe("-----BEGIN CERTIFICATE-----\n!\n").is_err());
}

#[test]
fn nothing_outlives_its_authority() {
    let soon = OffsetDateTime::now_utc() + Duration::days(10);
    let keys = Authority::create_until("bank", soon).unwrap().issue(NodeId(1), 365).unwrap();
    let until = describe(keys.certificate()).unwrap()[0].until;
    assert!(until <= soon && soon - until < Duration::seconds(2), "{until}");
    let over = Authority::create_until("bank", OffsetDateTime::now_utc() - Duration::hours(1)).unwrap();
    let error = over.issue(NodeId(1), 365).unwrap_err().to_string();
    assert!(error.contains("expired on") && error.contains("squall keys init"), "{error}");
    assert!(matches!(Authority::create("a").unwrap().issue(NodeId(1), 0), Err(KeysError::Days { days: 0 })));
}

#[test]
fn a_key_of_something_else_is_no_authority_s() {
    let directory = Directory::new();
    let files = directory.files();
    let error = Authority::load(&files).unwrap_err().to_string();
    assert!(error.contains("squall keys init"), "{error}");
    let authority = Authority::create("bank").unwrap();
    authority.save(&files, false).unwrap();
    let node = authority.issue(NodeId(1), 365).unwrap();
    fs::write(files.authority_key(), node.key()).unwrap();
    let error = Authority::load(&files).unwrap_err().to_string();
    assert!(error.contains("is not the key of"), "{error}");
    fs::write(files.authority_certificate(), node.certificate()).unwrap();
    let error = Authority::load(&files).unwrap_err().to_string();
    assert!(error.contains("not the certificate of a CA"), "{error}");
}

#[test]
fn each_role_has_files_of_its_name_and_a_certificate_that_says_it() {
    let directory = Directory::new();
    let files = directory.files();
    let authority = Authority::create("bank").unwrap();
    authority.save(&files, false).unwrap();
    let rights = ClientRights { groups: Some(["accounts".into()].into()), commands: false, logs: true };
    let owners = [
        Principal::Witness(NodeId(4)),
        Principal::Client("web".into(), rights),
        Principal::Client("batch".into(), ClientRights::default()),
        Principal::Operator("alice".into()),
    ];
    for (owner, name) in owners.into_iter().zip(["witness-4", "client-web", "client-batch", "operator-alice"]) {
        let keys = authority.issue(owner.clone(), 30).unwrap();
        keys.save(&files, false).unwrap();
        let of = files.of(owner.clone());
        assert!(of.key.ends_with(format!("{name}.key")) && of.certificate.ends_with(format!("{name}.pem")));
        assert_eq!(Identity::load(&of).unwrap().principal(), &owner);
        let description = &describe(keys.certificate()).unwrap()[0];
        assert!(
            matches!(&description.subject, Subject::Owner { principal, of_issuer: true, .. } if *principal == owner)
        );
    }
    let refused = |owner: Principal| authority.issue(owner, 1).unwrap_err();
    assert!(matches!(refused(Principal::Operator("Alice".into())), KeysError::Owner(_)));
    let rights = ClientRights { groups: Some(["a;logs".into()].into()), ..ClientRights::default() };
    assert!(matches!(refused(Principal::Client("web".into(), rights)), KeysError::Group { .. }));
}

#[test]
fn a_list_of_revoked_certificates_grows_and_is_believed() {
    let directory = Directory::new();
    let files = directory.files();
    let authority = Authority::create("bank").unwrap();
    authority.save(&files, false).unwrap();
    for node in [1, 2, 3].map(NodeId) {
        authority.issue(node, 30).unwrap().save(&files, false).unwrap();
    }
    let serial = |node: u32| {
        describe(&fs::read_to_string(files.of(NodeId(node)).certificate).unwrap()).unwrap()[0].serial.clone()
    };
    assert_eq!(authority.revoke(&files, [serial(1)]).unwrap().number, 1);
    let list = authority.revoke(&files, [serial(2), serial(1)]).unwrap();
    assert_eq!((list.number, list.serials.len()), (2, 2));
    let text = fs::read_to_string(files.revocation_list()).unwrap();
    assert_eq!(Revocations::read(&text).unwrap().serials.into_keys().collect::<Vec<_>>(), {
        let mut both = [serial(1), serial(2)];
        both.sort();
        both
    });
    let load = |node: u32| {
        let crl = Some(files.revocation_list());
        Identity::load(&KeyFiles { crl, ..files.of(NodeId(node)) }).map(|identity| identity.node())
    };
    assert!(load(1).is_err() && load(2).is_err());
    assert_eq!(load(3), Ok(NodeId(3)));
    fs::write(files.revocation_list(), "no list").unwrap();
    assert!(matches!(authority.revoke(&files, [serial(3)]), Err(KeysError::Malformed { .. })));
    assert_eq!(parse_serial("00:aB"), Some(vec![0, 0xab]));
    assert!(["", "a", "xy", "1é"].into_iter().all(|text| parse_serial(text).is_none()));
}
