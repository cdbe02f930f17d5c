//! Strongly connected components of a graph of files.

use super::names::Edges;

/// Returns the components of more than one file, largest first, with sorted files.
pub fn components(graph: &Edges) -> Vec<Vec<String>> {
    let files: Vec<&String> = graph.keys().collect();
    let index = |file: &String| files.binary_search(&file).expect("every file is a key");
    let next: Vec<Vec<usize>> = graph.values().map(|targets| targets.keys().map(index).collect()).collect();
    let reach: Vec<Vec<bool>> = (0..files.len()).map(|start| reached(&next, start)).collect();
    let (mut found, mut done) = (Vec::new(), vec![false; files.len()]);
    for (a, from) in reach.iter().enumerate() {
        let is_with = |&b: &usize| !done[b] && from[b] && reach[b][a];
        let component: Vec<usize> = (a..files.len()).filter(is_with).collect();
        component.iter().for_each(|&b| done[b] = true);
        if component.len() > 1 {
            found.push(component.into_iter().map(|b| files[b].clone()).collect::<Vec<_>>());
        }
    }
    found.sort_by_key(|component| std::cmp::Reverse(component.len()));
    found
}

/// Returns the files that `start` reaches over one or more edges.
fn reached(next: &[Vec<usize>], start: usize) -> Vec<bool> {
    let (mut seen, mut open) = (vec![false; next.len()], vec![start]);
    while let Some(file) = open.pop() {
        for &to in next[file].iter() {
            if !std::mem::replace(&mut seen[to], true) {
                open.push(to);
            }
        }
    }
    seen
}
