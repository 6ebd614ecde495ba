//! The demo: the story.
