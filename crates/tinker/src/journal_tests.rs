//! The journal over torn tails, damage, rewriting and full disks.

use super::*;
use std::sync::mpsc::channel;

fn records(path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    Journal::open(path, |record| {
        all.push(record.to_vec());
        Ok(())
    })?;
    Ok(all)
}

fn append(journal: &Journal, record: &[u8]) -> Result<()> {
    let (send, heard) = channel();
    journal.append(record.to_vec(), move |done| send.send(done).unwrap());
    heard.recv().unwrap()
}

fn filled(folder: &Path) -> (PathBuf, Vec<Vec<u8>>) {
    let path = folder.join("journal");
    let written: Vec<Vec<u8>> = (0u8..5).map(|i| vec![i; 100 + usize::from(i)]).collect();
    let (journal, _) = Journal::open(&path, |_| Ok(())).unwrap();
    written.iter().for_each(|record| append(&journal, record).unwrap());
    (path, written)
}

#[test]
fn a_tail_that_was_cut_off_anywhere_is_cut_away() {
    let folder = tempfile::tempdir().unwrap();
    let (path, written) = filled(folder.path());
    let whole = std::fs::read(&path).unwrap();
    let before = whole.len() - HEAD - 104;
    for length in before..=whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let count = 4 + usize::from(length == whole.len());
        assert_eq!(records(&path).unwrap(), written[..count], "cut to {length} of {}", whole.len());
        let kept = if count == 5 { whole.len() } else { before };
        assert_eq!(std::fs::metadata(&path).unwrap().len(), kept as u64);
    }
    // Zeros that a file system leaves, and a last record of which not all bytes came.
    let zeros = [&whole[..before], &[0; 5000][..]].concat();
    let mut torn = whole.clone();
    *torn.last_mut().unwrap() ^= 1;
    for bytes in [zeros, torn] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(records(&path).unwrap(), written[..4]);
    }
}

#[test]
fn damage_before_the_end_is_an_error_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = filled(folder.path());
    let whole = std::fs::read(&path).unwrap();
    // In the name, in a length, in its complement, in a sum, in a record.
    for at in [3, 16, 21, 24, 40, 150] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(records(&path).unwrap_err().slug, "tinker-journal-damaged", "byte {at}");
    }
}

#[test]
fn a_rewritten_journal_has_what_is_kept_and_what_came_later() {
    let folder = tempfile::tempdir().unwrap();
    let (path, written) = filled(folder.path());
    let (journal, _) = Journal::open(&path, |_| Ok(())).unwrap();
    let (send, heard) = channel();
    let number = |record: &[u8]| record.first().map(|byte| u64::from(*byte));
    journal.rewrite(vec![b"first".to_vec()], BTreeSet::from([1, 3]), number, move |length| {
        send.send(length).unwrap()
    });
    append(&journal, b"later").unwrap();
    let length = heard.recv().unwrap();
    drop(journal);
    let expect = [b"first".to_vec(), written[1].clone(), written[3].clone(), b"later".to_vec()];
    assert_eq!(records(&path).unwrap(), expect);
    assert_eq!(length + HEAD as u64 + 5, std::fs::metadata(&path).unwrap().len());
}

#[test]
fn a_disk_without_room_is_an_error_and_the_journal_stays_whole() {
    // Writes to it fail as on a full disk.
    let Ok(file) = OpenOptions::new().write(true).open("/dev/full") else { return };
    let mut keeper = Keeper { path: "/dev/full".into(), file, good: 0 };
    let error = keeper.write(&[b"record"]).unwrap_err();
    assert!(error.slug == "tinker-journal-failed" && error.hints[0].contains("full"), "{error}");
}
