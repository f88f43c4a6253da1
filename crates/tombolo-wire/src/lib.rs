//! Ids and bit-exact formats of everything that crosses a link.
