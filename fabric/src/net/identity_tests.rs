use std::os::unix::fs::OpenOptionsExt;

use super::{
    super::{
        principal::certificate_name,
        test_keys::{CLUSTER, Ca},
    },
    *,
};

fn name(node: u32) -> String {
    certificate_name(CLUSTER, NodeId(node))
}

fn error(ca: &Ca, names: &[String], years: [i32; 2]) -> IdentityError {
    let (certificate, key) = ca.issue(names, years);
    Identity::from_pem(&ca.pem(), &certificate, &key).unwrap_err()
}

#[test]
fn an_identity_knows_its_node_and_cluster() {
    let identity = Ca::new().identity(17);
    assert_eq!(identity.node(), NodeId(17));
    assert!(identity.is_for(CLUSTER) && !identity.is_for("another"));
}

#[test]
fn a_certificate_that_peers_would_refuse_is_refused_at_once() {
    let ca = Ca::new();
    let expired = error(&ca, &[name(1)], [2001, 2002]);
    assert!(matches!(&expired, IdentityError::Expired { .. }), "{expired}");
    assert!(expired.to_string().contains("days ago: make a new one"), "{expired}");
    assert!(matches!(error(&ca, &[name(1)], [3000, 3001]), IdentityError::NotYetValid { .. }));
    for names in [vec![], vec!["node-1.example.org".to_owned()], vec!["node-01.c0123456789abcdef.squall".to_owned()]] {
        assert!(matches!(error(&ca, &names, [2000, 4000]), IdentityError::NoOwner { .. }), "{names:?}");
    }
    let (certificate, key) = ca.issue(&[name(1)], [2000, 4000]);
    let (_, other_key) = ca.issue(&[name(1)], [2000, 4000]);
    let from_pem = |ca: &Ca, certificate, key| Identity::from_pem(&ca.pem(), certificate, key).unwrap_err();
    assert!(matches!(from_pem(&Ca::new(), &certificate, &key), IdentityError::OtherCa { .. }));
    assert!(matches!(from_pem(&ca, &certificate, &other_key), IdentityError::OtherKey { .. }));
    assert!(matches!(from_pem(&ca, &certificate, &certificate), IdentityError::NoKey { .. }));
    assert!(matches!(from_pem(&ca, &key, &key), IdentityError::Malformed { .. }));
    assert!(matches!(from_pem(&ca, "", ""), IdentityError::Malformed { .. }));
}

#[test]
fn who_can_not_wait_is_told_that_the_keys_are_being_read() {
    let identity = Ca::new().identity(1);
    let reading = identity.0.reading.lock();
    assert_eq!(identity.try_reload(), Err(IdentityError::BeingRead));
    drop(reading);
    assert_eq!(identity.try_reload(), Ok(()));
}

#[test]
fn files_are_named_in_errors_and_an_open_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let (certificate, key) = ca.issue(&[name(1)], [2000, 4000]);
    let [ca_path, certificate_path, key_path] = ["ca", "node", "key"].map(|file| folder.path().join(file));
    fs::write(&ca_path, ca.pem()).unwrap();
    fs::write(&certificate_path, certificate).unwrap();
    let load = || Identity::load(&KeyFiles::new(&ca_path, &certificate_path, &key_path));

    let missing = load().unwrap_err().to_string();
    assert!(missing.contains(key_path.to_str().unwrap()) && missing.contains("squall keys add"), "{missing}");
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&key_path).unwrap();
    io::Write::write_all(&mut &file, key.as_bytes()).unwrap();
    assert_eq!(load().unwrap().node(), NodeId(1));
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    let open = load().unwrap_err().to_string();
    assert!(open.contains("mode 640") && open.contains("chmod 600"), "{open}");
}
