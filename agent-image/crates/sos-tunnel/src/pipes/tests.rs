use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Two ends of a connection; the second does not wait.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// So many bytes, received at once.
fn kept(pipes: &Arc<Pipes>, bytes: &[u8]) -> Kept {
    let (mut near, far) = pair();
    near.write_all(bytes).unwrap();
    let mut seen = vec![0; bytes.len()];
    while far.peek(&mut seen).unwrap_or(0) < bytes.len() {}
    match pipes.receive(&far, bytes.len()).unwrap().unwrap() {
        Payload::Kept(kept) => kept,
        Payload::Bytes(_) => panic!("not worth a pipe"),
    }
}

fn part(kept: &Kept, range: std::ops::Range<usize>) -> Kept {
    let Payload::Kept(part) = Payload::Kept(kept.clone()).slice(range) else { panic!("it is kept") };
    part
}

#[test]
fn what_is_kept_is_sent_as_often_as_need_be_and_in_parts() {
    let (pipes, text) = (Arc::<Pipes>::default(), text(100_000));
    let kept = kept(&pipes, &text);
    let mut sluice = Sluice::default();
    for range in [0..100_000, 30_000..70_000, 99_999..100_000, 0..1] {
        let (near, mut far) = pair();
        let part = part(&kept, range.clone());
        assert!(sluice.fill(&part).unwrap());
        let mut left = range.len();
        while left > 0 {
            left -= sluice.give(left.min(7_000), &near, false).unwrap();
        }
        sluice.close();
        drop(near);
        far.set_nonblocking(false).unwrap();
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).unwrap();
        assert!(sent == text[range.clone()] && read(&part).unwrap() == text[range]);
    }
}

#[test]
fn what_is_given_is_gone_and_so_is_what_was_before_it() {
    let (pipes, text) = (Arc::<Pipes>::default(), text(100_000));
    let whole = kept(&pipes, &text);
    let (near, mut far) = pair();
    for range in [10_000..20_000, 20_000..20_001, 50_000..100_000] {
        let mut range = range;
        while !range.is_empty() {
            range.start += give(&part(&whole, range.clone()), &near, false).unwrap();
        }
    }
    drop(near);
    far.set_nonblocking(false).unwrap();
    let mut sent = Vec::new();
    far.read_to_end(&mut sent).unwrap();
    assert!(sent == [&text[10_000..20_001], &text[50_000..]].concat());
    assert_eq!(pipes.lent.load(Ordering::Relaxed), 1);
    drop(whole);
    assert_eq!((pipes.lent.load(Ordering::Relaxed), lock(&pipes.idle).len()), (0, 1));
}

#[test]
fn little_is_in_memory_and_at_the_end_there_is_nothing() {
    let pipes = Arc::<Pipes>::default();
    let (mut near, far) = pair();
    let nothing = pipes.receive(&far, 1000).unwrap().unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    near.write_all(&text(100)).unwrap();
    drop(near);
    assert_eq!(pipes.receive(&far, 60).unwrap().unwrap(), Payload::from(text(60)));
    assert_eq!(pipes.receive(&far, 1000).unwrap().unwrap().len(), 40);
    assert!(pipes.receive(&far, 1000).is_none());
    assert_eq!((pipes.lent.load(Ordering::Relaxed), lock(&pipes.idle).len()), (0, 1), "one for all");
}

#[test]
fn beyond_the_bound_what_is_kept_goes_another_way() {
    let (pipes, text) = (Arc::<Pipes>::default(), text(20_000));
    pipes.most.store(2, Ordering::Relaxed);
    let both = [kept(&pipes, &text), kept(&pipes, &text)];
    let (_near, far) = pair();
    assert!(pipes.receive(&far, 1000).is_none());
    assert!(!Sluice::default().fill(&both[0]).unwrap());
    assert_eq!(read(&both[0]).unwrap(), text, "through the one that is always there");
    assert_eq!(read(&both[1]).unwrap(), text);
    drop(both);
    assert!(pipes.receive(&far, 1000).is_some());
}

#[test]
fn a_process_that_is_given_no_more_pipes_of_the_size_takes_what_it_has() {
    let pipes = Arc::<Pipes>::default();
    let limited = Arc::clone(&pipes);
    // What one thread gives up the others keep.
    let bound = std::thread::spawn(move || {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let lent: Vec<_> = std::iter::from_fn(|| limited.take()).collect();
        lent.len()
    })
    .join()
    .unwrap();
    // `fs.pipe-user-pages-soft` has 16,384 pages unless somebody changed that: 64 pipes, of which others may have some.
    assert!(bound < MAX_PIPES, "{bound}");
    assert_eq!(pipes.most.load(Ordering::Relaxed), bound);
    assert_eq!(pipes.take().is_some(), bound > 0);
}
