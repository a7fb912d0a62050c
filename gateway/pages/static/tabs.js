// Tabs as the ARIA practices describe them: arrow keys move, the chosen one alone is in the tab order.

/** Make a tablist work; `onSelect` is called with the chosen tab. Returns a function that chooses a tab. */
export function makeTabs(tablist, onSelect = () => {}) {
  const tabs = [...tablist.querySelectorAll("[role=tab]")];

  function select(tab) {
    for (const each of tabs) {
      const isChosen = each === tab;
      each.setAttribute("aria-selected", String(isChosen));
      each.tabIndex = isChosen ? 0 : -1;
    }
    const chosen = document.getElementById(tab.getAttribute("aria-controls"));
    for (const each of tabs) {
      const panel = document.getElementById(each.getAttribute("aria-controls"));
      if (panel !== chosen) panel.hidden = true;
    }
    chosen.hidden = false;
    onSelect(tab);
  }

  for (const tab of tabs) tab.addEventListener("click", () => select(tab));
  tablist.addEventListener("keydown", (event) => {
    const shown = tabs.filter((tab) => !tab.hidden);
    const at = shown.indexOf(document.activeElement);
    const last = shown.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    shown[to].focus();
    select(shown[to]);
  });
  select(tabs[0]);
  return select;
}
