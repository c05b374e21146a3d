//! Registered memory: kept for later, and that of other fabrics.

use squall_fabric::{Completion, Fabric, Op, Region, RegionKey, RegionKind, Slice, Source, Target, Token};

use crate::world::{connect, is_there, two, until};

/// Moves bytes between regions that this fabric did not make, in each way.
#[test]
fn foreign_memory_serves_as_well() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let heap = |key| Region::heap(RegionKind::Bulk, RegionKey(key), 10_000);
    let (from, exposed, inbox, back) = (heap(1), heap(2), heap(3), heap(4));
    from.write(0, &[7; 10_000]);
    let [(a, remote), (b, _)] = connect(&mut fabrics, [&[], std::slice::from_ref(&exposed)]);
    let [first, second] = &mut fabrics;
    let whole = |region| Slice { region, offset: 0, len: 10_000 };
    let target = Target { region: remote[0].key, offset: 0 };
    second.post(b, Op::Recv { into: whole(&inbox) }, Token(1)).expect("a receive");
    second.poll(squall_fabric::Time::boot_clock(), &mut Vec::new());
    first.post(a, Op::Write { source: Source::Region(whole(&from)), target }, Token(2)).expect("a write");
    first.post(a, Op::Read { from: target, into: whole(&back) }, Token(3)).expect("a read");
    first.post(a, Op::Send { source: Source::Region(whole(&from)), imm: None }, Token(4)).expect("a send");
    until(&mut [first, second], "a message", |_, completion| {
        matches!(completion, Completion::Received { bytes: 10_000, .. }).then_some(())
    });
    for (name, region) in [("exposed", &exposed), ("read", &back), ("received", &inbox)] {
        let mut bytes = vec![0; 10_000];
        region.read(0, &mut bytes);
        assert!(bytes == [7; 10_000], "the {name} bytes are others");
    }
}

#[test]
fn memory_that_is_used_again_is_zeroed_and_has_a_new_key() {
    if !is_there() {
        return;
    }
    let [mut fabric, _other] = two();
    let (first, base) = {
        let region = fabric.register(RegionKind::Bulk, 100_000).expect("memory");
        region.write(0, &[1; 100_000]);
        (region.key(), region.address(0, 1))
    };
    let again = fabric.register(RegionKind::Polled, 80_000).expect("memory");
    assert_eq!(again.address(0, 1), base, "registered memory of that size was free");
    assert_ne!(again.key(), first);
    let mut bytes = vec![9; 80_000];
    again.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "memory was given out with what was in it");
}

#[test]
fn regions_outlive_their_fabric() {
    if !is_there() {
        return;
    }
    let [mut fabric, _other] = two();
    let region = fabric.register(RegionKind::Bulk, 4096).expect("memory");
    drop(fabric);
    region.write(0, &[3; 4096]);
    let mut bytes = [0; 4096];
    region.read(0, &mut bytes);
    assert_eq!(bytes, [3; 4096]);
}

/// A thread that gives memory back to its own fabric is not kept waiting by this one.
#[test]
fn foreign_memory_is_let_go_when_its_endpoint_is() {
    if !is_there() {
        return;
    }
    let mut fabrics = two();
    let region = fabrics[0].register(RegionKind::Bulk, 4096).expect("memory");
    let (base, key) = (region.address(0, 1), region.key());
    // To the second node, the first one's memory is foreign.
    let [_, (b, _)] = connect(&mut fabrics, [&[], std::slice::from_ref(&region)]);
    drop(region);
    let [first, second] = &mut fabrics;
    let meanwhile = first.register(RegionKind::Bulk, 4096).expect("memory");
    assert_ne!(meanwhile.address(0, 1), base, "memory that is exposed was given out");
    second.disconnect(b);
    let after = first.register(RegionKind::Bulk, 4096).expect("memory");
    assert_eq!(after.address(0, 1), base, "memory that is not exposed any more was kept");
    assert_ne!(after.key(), key);
}
