//! Granted rules, indexed by what they are about, so that a check costs the same whether one rule is granted or a hundred.
//!
//! **They cannot be changed, only exchanged**: an index that no longer fits its rules would grant what nobody granted.

use std::{borrow::Cow, collections::HashMap, fmt, ops::Deref, sync::Arc};

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::{Access, Rule};

/// Rules in the order in which they were written. Cheap to clone.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Rule>", into = "Vec<Rule>")]
pub struct Rules(Arc<Indexed>);

#[derive(Default)]
struct Indexed {
    list: Vec<Rule>,
    /// By `RESOURCE` and `RESOURCE/SUBRESOURCE`.
    by_target: HashMap<String, Vec<usize>, RandomState>,
    /// Those with `*` or `*/SUBRESOURCE`.
    of_many: Vec<usize>,
}

impl Rules {
    /// Those that allow all of this access.
    pub(super) fn allowing(&self, access: &Access<'_>) -> impl Iterator<Item = &Rule> {
        let Indexed { list, by_target, of_many } = &*self.0;
        let target = match access.subresource {
            None => Cow::Borrowed(access.resource.resource()),
            Some(_) => Cow::Owned(access.target()),
        };
        let own = by_target.get(&*target).into_iter().flatten();
        own.chain(of_many).filter_map(|at| list.get(*at)).filter(|rule| rule.allows(access))
    }
}

impl From<Vec<Rule>> for Rules {
    fn from(list: Vec<Rule>) -> Self {
        let mut by_target = HashMap::<_, Vec<_>, _>::default();
        let mut of_many = Vec::new();
        for (at, rule) in list.iter().enumerate() {
            for target in &rule.resources {
                if target.starts_with('*') {
                    of_many.push(at);
                } else {
                    by_target.entry(target.clone()).or_default().push(at);
                }
            }
        }
        Self(Arc::new(Indexed { list, by_target, of_many }))
    }
}

impl From<Rules> for Vec<Rule> {
    fn from(rules: Rules) -> Self {
        rules.to_vec()
    }
}

impl Deref for Rules {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.0.list
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Rules {}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}
