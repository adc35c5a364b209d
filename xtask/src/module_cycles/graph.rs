//! Strongly connected components of a graph of names, by Tarjan's algorithm.

use std::collections::BTreeMap;

/// The components with more than one member, each sorted. The order follows the names, so it is the same at every run.
pub(super) fn cyclic_components<'a>(edges: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Vec<&'a str>> {
    let mut successors: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges {
        successors.entry(from).or_default().push(to);
        successors.entry(to).or_default();
    }
    let mut search =
        Search { successors: &successors, visited: BTreeMap::new(), stack: Vec::new(), components: Vec::new() };
    for node in successors.keys() {
        if !search.visited.contains_key(node) {
            search.visit(node);
        }
    }
    let mut components = search.components;
    components.sort();
    components
}

/// What is known of a node that the search has reached.
struct Visited {
    index: usize,
    /// Whether its component is still open.
    on_stack: bool,
}

struct Search<'g, 'a> {
    successors: &'g BTreeMap<&'a str, Vec<&'a str>>,
    visited: BTreeMap<&'a str, Visited>,
    stack: Vec<&'a str>,
    components: Vec<Vec<&'a str>>,
}

impl<'a> Search<'_, 'a> {
    /// Visits `node` and all it reaches; returns the smallest index of an open node that it reaches.
    fn visit(&mut self, node: &'a str) -> usize {
        let index = self.visited.len();
        let mut low = index;
        self.visited.insert(node, Visited { index, on_stack: true });
        self.stack.push(node);
        for &next in self.successors.get(node).into_iter().flatten() {
            match self.visited.get(next) {
                None => low = low.min(self.visit(next)),
                Some(visited) if visited.on_stack => low = low.min(visited.index),
                Some(_) => {}
            }
        }
        if low == index {
            self.close_component(node);
        }
        low
    }

    /// Takes the component that begins with `root` off the stack.
    fn close_component(&mut self, root: &str) {
        let start = self.stack.iter().rposition(|node| *node == root).unwrap_or(0);
        let mut members = self.stack.split_off(start);
        for member in &members {
            if let Some(visited) = self.visited.get_mut(member) {
                visited.on_stack = false;
            }
        }
        if members.len() > 1 {
            members.sort_unstable();
            self.components.push(members);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_found() {
        type Case = (&'static [(&'static str, &'static str)], &'static [&'static [&'static str]]);
        let cases: [Case; 5] = [
            (&[], &[]),
            (&[("a", "b"), ("b", "c"), ("a", "c")], &[]),
            (&[("a", "b"), ("b", "a")], &[&["a", "b"]]),
            (
                &[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")],
                &[&["a", "b", "c"], &["d", "e"]],
            ),
            (&[("z", "y"), ("y", "x"), ("x", "y"), ("w", "z")], &[&["x", "y"]]),
        ];
        for (edges, expected) in cases {
            assert_eq!(cyclic_components(edges.iter().copied()), expected, "{edges:?}");
        }
    }
}
