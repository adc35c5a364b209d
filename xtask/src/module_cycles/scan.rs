//! The modules in one source file: those it declares, the paths it names, and the names it imports.
//!
//! The file is read as tokens, not as syntax: a path inside a macro call is then found like any other.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

/// The path of a module from the root of its crate; the root's own is empty.
pub(super) type ModulePath = Vec<String>;

/// The contents of a file, as far as modules are concerned.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scanned {
    /// Modules written out in the file.
    pub(super) inline: Vec<ModulePath>,
    /// Modules with a file of their own.
    pub(super) declared: Vec<Declared>,
    /// Paths that begin with `crate`, `self` or `super`.
    pub(super) references: Vec<Named>,
    /// Names that `use` brings into a module.
    pub(super) imports: Vec<Import>,
}

/// `mod name;`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) module: ModulePath,
    /// The value of its `#[path]`.
    pub(super) path: Option<String>,
    pub(super) line: usize,
}

/// A path that code in `module` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) module: ModulePath,
    /// The path from the root of the crate: modules, then perhaps items.
    pub(super) target: Vec<String>,
    pub(super) line: usize,
}

/// `use target as name;` in `module`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) module: ModulePath,
    pub(super) name: String,
    /// The path from the root of the crate, or the name of another crate below `module`.
    pub(super) target: Vec<String>,
}

pub(super) fn scan(text: &str, module: &[String]) -> Result<Scanned> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        anyhow!("line {}: not a Rust token: {error}", error.span().start().line)
    })?;
    let mut scanned = Scanned::default();
    scanned.tokens(tokens, module);
    Ok(scanned)
}

/// One path of a `use` declaration or an expression.
struct Leaf {
    segments: Vec<String>,
    /// The name that `use` gives it; `None` for a glob.
    name: Option<String>,
    line: usize,
}

impl Scanned {
    fn tokens(&mut self, tokens: TokenStream, module: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = self.step(&tokens, at, module);
        }
    }

    /// Reads what begins at `at`; returns where the next thing begins.
    fn step(&mut self, tokens: &[TokenTree], at: usize, module: &[String]) -> usize {
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => self.attributes(tokens, at, module),
            TokenTree::Ident(word) if word == "mod" => self.module(tokens, at, None, module),
            TokenTree::Ident(word) if word == "use" => self.declaration(tokens, at, module),
            TokenTree::Ident(word) if starts_local_path(word) && is_separator(tokens, at + 1) => {
                let mut leaves = Vec::new();
                let end = read_path(tokens, at, &[], &mut leaves);
                leaves.into_iter().for_each(|leaf| self.refer(leaf, module));
                end
            }
            TokenTree::Group(group) => {
                self.tokens(group.stream(), module);
                at + 1
            }
            _ => at + 1,
        }
    }

    /// Reads attributes and their item, which is left out if it is only for tests.
    fn attributes(&mut self, tokens: &[TokenTree], start: usize, module: &[String]) -> usize {
        let (mut at, mut tests, mut path) = (start, false, None);
        while let Some((attribute, end)) = attribute(tokens, at) {
            let of_tests = is_of_tests(attribute);
            if of_tests && is_punct(tokens, at + 1, '!') {
                return tokens.len();
            }
            at = end;
            tests |= of_tests;
            path = path.or_else(|| path_value(attribute));
            self.tokens(attribute.stream(), module);
        }
        if tests {
            return after_item(tokens, at);
        }
        let item = after_visibility(tokens, at);
        match path {
            Some(path) if is_word(tokens, item, "mod") => self.module(tokens, item, Some(path), module),
            // In a macro, `#` may be the macro's own.
            _ => at.max(start + 1),
        }
    }

    /// Reads `mod name;` or `mod name { ... }`.
    fn module(&mut self, tokens: &[TokenTree], at: usize, path: Option<String>, module: &[String]) -> usize {
        let Some(TokenTree::Ident(name)) = tokens.get(at + 1) else { return at + 1 };
        let module = [module, &[text(name)]].concat();
        match tokens.get(at + 2) {
            Some(TokenTree::Punct(end)) if end.as_char() == ';' => {
                self.declared.push(Declared { module, path, line: name.span().start().line });
            }
            Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => {
                self.tokens(body.stream(), &module);
                self.inline.push(module);
            }
            _ => return at + 1,
        }
        at + 3
    }

    /// Reads `use ...;`.
    fn declaration(&mut self, tokens: &[TokenTree], at: usize, module: &[String]) -> usize {
        // A path that begins with `::` is another crate's.
        if is_separator(tokens, at + 1) {
            return at + 1;
        }
        let mut leaves = Vec::new();
        let end = read_path(tokens, at + 1, &[], &mut leaves);
        for leaf in leaves {
            if let (Some(name), Some(target)) = (leaf.name.clone(), absolute(&leaf.segments, module)) {
                self.imports.push(Import { module: module.to_vec(), name, target });
            }
            if leaf.segments.first().is_some_and(|first| is_local(first)) {
                self.refer(leaf, module);
            }
        }
        end
    }

    fn refer(&mut self, leaf: Leaf, module: &[String]) {
        if let Some(target) = absolute(&leaf.segments, module) {
            self.references.push(Named { module: module.to_vec(), target, line: leaf.line });
        }
    }
}

/// Reads a path that continues at `at` after `prefix`, with all branches of its groups; returns where it ends.
fn read_path(tokens: &[TokenTree], mut at: usize, prefix: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let mut segments = prefix.to_vec();
    let (name, line) = loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => {
                segments.push(text(word));
                at += 1;
                if is_separator(tokens, at) {
                    at += 2;
                    continue;
                }
                break (segments.iter().rfind(|segment| *segment != "self").cloned(), word.span().start().line);
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                read_group(group, &segments, leaves);
                return at + 1;
            }
            // This is a glob, or the arguments of a generic function.
            Some(other) if segments.len() > prefix.len() => break (None, other.span().start().line),
            _ => return at,
        }
    };
    match (is_word(tokens, at, "as"), tokens.get(at + 1)) {
        (true, Some(TokenTree::Ident(alias))) => {
            leaves.push(Leaf { segments, name: Some(text(alias)), line });
            at + 2
        }
        _ => {
            leaves.push(Leaf { segments, name, line });
            at
        }
    }
}

/// Reads the branches of `{a, b::c}`.
fn read_group(group: &Group, prefix: &[String], leaves: &mut Vec<Leaf>) {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    for branch in tokens.split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ',')) {
        let begin = if is_separator(branch, 0) { 2 } else { 0 };
        read_path(branch, begin, prefix, leaves);
    }
}

/// `segments`, written in `module`, from the root of the crate; none when they climb beyond it.
fn absolute(segments: &[String], module: &[String]) -> Option<Vec<String>> {
    let mut path = module.to_vec();
    for segment in segments {
        match segment.as_str() {
            "crate" => path.clear(),
            "self" => {}
            "super" => drop(path.pop()?),
            _ => path.push(segment.clone()),
        }
    }
    Some(path)
}

/// The attribute at `at`, `#[...]` or `#![...]`, and where it ends.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<(&Group, usize)> {
    if !is_punct(tokens, at, '#') {
        return None;
    }
    let at = if is_punct(tokens, at + 1, '!') { at + 2 } else { at + 1 };
    match tokens.get(at)? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => Some((group, at + 1)),
        _ => None,
    }
}

/// Whether an attribute keeps its item out of everything but tests: `cfg(test)`, `test`, `tokio::test(...)`.
fn is_of_tests(attribute: &Group) -> bool {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Group(predicate)] if word == "cfg" => implies_test(predicate.stream()),
        [.., TokenTree::Ident(word)] | [.., TokenTree::Ident(word), TokenTree::Group(_)] => word == "test",
        _ => false,
    }
}

/// Whether a predicate of `cfg` holds only in tests.
fn implies_test(predicate: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = predicate.into_iter().collect();
    let branches = |group: &Group| -> Vec<TokenStream> {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        let branches = tokens.split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
        branches.filter(|branch| !branch.is_empty()).map(|branch| branch.iter().cloned().collect()).collect()
    };
    match &tokens[..] {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
            branches(group).into_iter().any(implies_test)
        }
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "any" => {
            let branches = branches(group);
            !branches.is_empty() && branches.into_iter().all(implies_test)
        }
        _ => false,
    }
}

/// The value of `#[path = "..."]`.
fn path_value(attribute: &Group) -> Option<String> {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Punct(_), TokenTree::Literal(value)] if word == "path" => {
            Some(value.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}

/// Where the item, statement, field or variant ends that begins at `start`.
fn after_item(tokens: &[TokenTree], start: usize) -> usize {
    const ITEMS: [&str; 15] = [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "unsafe",
        "use",
    ];
    let begin = after_visibility(tokens, start);
    let is_item = matches!(tokens.get(begin), Some(TokenTree::Ident(word)) if ITEMS.iter().any(|item| word == item));
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => punct.as_char() == ';' || (punct.as_char() == ',' && !is_item),
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    tokens[begin..].iter().position(ends).map_or(tokens.len(), |length| begin + length + 1)
}

/// Where what follows `pub` or `pub(...)` begins.
fn after_visibility(tokens: &[TokenTree], at: usize) -> usize {
    if !is_word(tokens, at, "pub") {
        return at;
    }
    match tokens.get(at + 1) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => at + 2,
        _ => at + 1,
    }
}

fn starts_local_path(word: &Ident) -> bool {
    is_local(&word.to_string())
}

fn is_local(segment: &str) -> bool {
    matches!(segment, "crate" | "self" | "super")
}

/// An identifier, `r#type` as `type`.
fn text(word: &Ident) -> String {
    let text = word.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

fn is_word(tokens: &[TokenTree], at: usize, expected: &str) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Ident(word)) if word == expected)
}

fn is_punct(tokens: &[TokenTree], at: usize, expected: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == expected)
}

/// Whether `::` is at `at`.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let joint = matches!(tokens.get(at), Some(TokenTree::Punct(first)) if first.spacing() == Spacing::Joint);
    joint && is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}
