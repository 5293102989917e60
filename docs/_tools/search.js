/* Guides before names of Python: a title or an index entry with the words comes first, an object last. */
var Scorer = {
  score: ([, , , , score, , kind]) => score + ({ title: 20, index: 20, object: -20 }[kind] ?? 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
