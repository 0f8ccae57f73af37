"""Names of labels that would do harm, or break the page, if they were shown as they are."""

ATTACKS = [
    "<script>window.hacked = 'script'</script>",
    "<img src=x onerror=\"window.hacked = 'image'\">",
    "${window.hacked = 'template'}",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "</button></li><svg onload=\"window.hacked = 'svg'\">",
]
LABELS = ["fruit", "animal", "=1+1", "مرحبا", "no_space_" * 30, *ATTACKS]
EXAMPLE = "apple dog <b>moon</b>\n" + "fox " * 30
