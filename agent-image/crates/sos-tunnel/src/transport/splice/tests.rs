use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Both ends of a connection; the second is non-blocking.
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

/// Receives these bytes in one read.
fn kept(pipes: &Arc<PipePool>, bytes: &[u8]) -> Kept {
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
fn kept_bytes_can_be_sent_repeatedly_and_in_parts() {
    let (pipes, text) = (Arc::<PipePool>::default(), text(100_000));
    let kept = kept(&pipes, &text);
    let mut tee = TeePipe::default();
    for range in [0..100_000, 30_000..70_000, 99_999..100_000, 0..1] {
        let (near, mut far) = pair();
        let part = part(&kept, range.clone());
        assert!(tee.fill(&part).unwrap());
        let mut left = range.len();
        while left > 0 {
            left -= tee.give(left.min(7_000), &near, false).unwrap();
        }
        tee.close();
        drop(near);
        far.set_nonblocking(false).unwrap();
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).unwrap();
        assert!(sent == text[range.clone()] && read(&part).unwrap() == text[range]);
    }
}

#[test]
fn given_bytes_and_all_bytes_before_them_are_dropped() {
    let (pipes, text) = (Arc::<PipePool>::default(), text(100_000));
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
fn few_bytes_are_in_memory_and_none_at_the_end() {
    let pipes = Arc::<PipePool>::default();
    let (mut near, far) = pair();
    let nothing = pipes.receive(&far, 1000).unwrap().unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    near.write_all(&text(100)).unwrap();
    drop(near);
    assert_eq!(pipes.receive(&far, 60).unwrap().unwrap(), Payload::from(text(60)));
    assert_eq!(pipes.receive(&far, 1000).unwrap().unwrap().len(), 40);
    assert!(pipes.receive(&far, 1000).is_none());
    assert_eq!(
        (pipes.lent.load(Ordering::Relaxed), lock(&pipes.idle).len()),
        (0, 1),
        "one pipe for all reads"
    );
}

#[test]
fn beyond_the_limit_kept_bytes_are_copied() {
    let (pipes, text) = (Arc::<PipePool>::default(), text(20_000));
    pipes.most.store(2, Ordering::Relaxed);
    let both = [kept(&pipes, &text), kept(&pipes, &text)];
    let (_near, far) = pair();
    assert!(pipes.receive(&far, 1000).is_none());
    assert!(!TeePipe::default().fill(&both[0]).unwrap());
    assert_eq!(read(&both[0]).unwrap(), text, "through the scratch pipe");
    assert_eq!(read(&both[1]).unwrap(), text);
    drop(both);
    assert!(pipes.receive(&far, 1000).is_some());
}

#[test]
fn a_process_refused_more_pipes_uses_those_it_has() {
    let pipes = Arc::<PipePool>::default();
    let limited = Arc::clone(&pipes);
    // Only this thread drops its capabilities; the other threads keep them.
    let bound = std::thread::spawn(move || {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let lent: Vec<_> = std::iter::from_fn(|| limited.take()).collect();
        lent.len()
    })
    .join()
    .unwrap();
    // `fs.pipe-user-pages-soft` allows 16,384 pages by default: 64 pipes, some of which other processes may use.
    assert!(bound < MAX_PIPES, "{bound}");
    assert_eq!(pipes.most.load(Ordering::Relaxed), bound);
    assert_eq!(pipes.take().is_some(), bound > 0);
}
